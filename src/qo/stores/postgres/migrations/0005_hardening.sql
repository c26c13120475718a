-- Hardening changed functions alone: they are replaced with every migration.
COMMENT ON TABLE qo.migrations IS 'The greatest number is the version of this schema';

"""The manager: keeps as many worker processes as there is work for."""

from qo.manager.manager import Manager

__all__ = ["Manager"]

"""The words and decisions of qo, without effects.

Everything here is a value or a pure function: no I/O, no clock, no asyncio, no
randomness of its own. Time and random draws arrive as arguments, so the same
arguments always give the same answer, on every engine and in every test.
"""

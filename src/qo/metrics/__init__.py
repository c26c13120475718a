"""Counters, gauges and histograms: numbers that are kept as things happen and written out when someone asks.

Nothing here runs by itself. Counting is an addition to a plain number; it belongs to one event
loop, like the broker that counts.
"""

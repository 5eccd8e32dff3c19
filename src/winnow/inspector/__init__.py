"""Traces of what a generation computed, read, parked and kept, step by step, and a web page over them."""

from winnow.inspector.page import render
from winnow.inspector.recorder import Recorder, record
from winnow.inspector.trace import LayerStep, Snapshot, Step, Token, Trace

__all__ = ["LayerStep", "Recorder", "Snapshot", "Step", "Token", "Trace", "record", "render"]

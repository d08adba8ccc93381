"""Events and metrics of this package as torch's own.

torch is never imported here: a program that has not imported these parts of it has set up
no handler, and torch's own handlers drop everything.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Callable

from .._native.log import logger

#: What takes a metric: name, value, group. torch's put_metric.
OnMetric = Callable[[str, int, str], object]

_EVENTS = "torch.distributed.elastic.events"
_METRICS = "torch.distributed.elastic.metrics"
_GROUP = "torchelastic"


def metrics(config: Mapping[str, str]) -> OnMetric | None:
    """torch's put_metric; None if no handler would take what it gets.

    Args:
        config: metrics_cfg of a launch, which torch receives first.
    """
    module: Any = sys.modules.get(_METRICS)
    if module is None:
        return None
    module.initialize_metrics(module.MetricsConfig(dict(config)))
    if isinstance(module.getStream(_GROUP).handler, module.NullMetricHandler):
        return None
    put: OnMetric = module.put_metric
    return put


def _rdzv_events() -> Any:
    """torch's module of events; None if no handler takes events of the rendezvous."""
    module: Any = sys.modules.get(_EVENTS)
    if module is None:
        return None
    handler = module.get_logging_handler("dynamic_rendezvous")
    return None if isinstance(handler, logging.NullHandler) else module


def rdzv_events() -> Callable[[str], None] | None:
    """Returns what passes a rendezvous event to torch; None if no handler takes it there."""
    module = _rdzv_events()
    if module is None:
        return None
    return lambda text: module.record_rdzv_event(module.RdzvEvent.deserialize(text))


_serial = itertools.count()


@functools.lru_cache(maxsize=1)
def host_name() -> str:
    """The full name of this machine, or its short one if that is not known."""
    full = socket.getfqdn()
    return full if "." in full else socket.gethostname()


class RdzvRecorder:
    """Hands the steps of one node to torch's events, as torch's own handler does.

    The agent in Go makes the same events, in the same words
    (agent/telemetry/rdzvevent.go). What a user's handler raises is logged once, and
    hinders nothing.

    Args:
        run_id: name of the run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._local_id = next(_serial)
        self._complained = False

    def __call__(
        self,
        step: str,
        state: str,
        message: str,
        *,
        rank: int | None = None,
        master_endpoint: str = "",
        error: BaseException | None = None,
        **values: object,
    ) -> None:
        """Records a step.

        Args:
            step: what torch's handler calls it.
            state: name of a NodeState.
            message: human-readable, with %(node)s, %(run)s and %(name)s of the values.
            rank: of the node, if it is known.
            master_endpoint: of the round's store, if it is known.
            error: whose traceback is recorded.
            **values: of the message.
        """
        try:
            events = _rdzv_events()
            if events is None:
                return
            host, pid = host_name(), os.getpid()
            node = f"{host}_{pid}_{self._local_id}"
            trace = ""
            if error is not None:
                trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            event = events.RdzvEvent(
                name=f"rallypoint:{step}",
                run_id=self._run_id,
                message=message % {"node": node, "run": self._run_id, **values},
                hostname=host,
                pid=pid,
                node_state=events.NodeState[state],
                master_endpoint=master_endpoint,
                rank=rank,
                local_id=self._local_id,
                error_trace=trace,
            )
            events.record_rdzv_event(event)
        except Exception:
            if not self._complained:
                self._complained = True
                logger.exception("the handler of events of the rendezvous failed")

    def failed(self, step: str, error: BaseException) -> None:
        """Records an error, by class and text."""
        text = f"{type(error).__name__}: {error}"
        self(step, "FAILED", "%(text)s", error=error, text=text)

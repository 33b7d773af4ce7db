"""The elastic part of a request of Horovod's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.places import check_size
from lockstep.launch.base.seconds import whole_seconds
from lockstep.launch.elastic.driver import Limits
from lockstep.launch.elastic.elastic_job import ElasticPlan
from lockstep.launch.elastic.host_pool import Cooldown
from lockstep.launch.placement.hosts import Host

TIMEOUT_VARIABLE = "HOROVOD_ELASTIC_TIMEOUT"
_TIMEOUT_S = 600
_MOST_COOLDOWN_S = 3600
# The option of `horovodrun` for each attribute, for messages.
OPTIONS = {
    "min_np": "--min-np",
    "max_np": "--max-np",
    "host_discovery_script": "--host-discovery-script",
    "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
}
# Each of these makes a job elastic; the others only configure an elastic job.
_MAKE_ELASTIC = ("min_np", "max_np", "host_discovery_script")


def check_whole(name: str, value: object) -> None:
    """Checks that a value is a whole number or None, since programs may pass anything.

    Raises:
      LaunchError: it is neither.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise LaunchError(f"{name}: got {value!r}, wanted a whole number")


@dataclass(frozen=True)
class ElasticOptions:
    """The options of an elastic job; None for options that were not given. True if the job is elastic.

    Attributes:
      min_np: With fewer processes the job waits; by default the number of processes to start with.
      max_np: The largest number of processes; by default one for each slot.
      host_discovery_script: A program that prints the hosts; it is run again and again.
      slots: The slots of hosts for which the script prints no number.
      elastic_timeout: The seconds for which the job waits; by default HOROVOD_ELASTIC_TIMEOUT, or 600.
      reset_limit: How often the job may be reset; by default without limit.
      cooldown_range: The seconds for which a host gets no new processes after a failure: at first, and at most. By
        default it gets none for good.
    """

    min_np: int | None = None
    max_np: int | None = None
    host_discovery_script: str | None = None
    slots: int | None = None
    elastic_timeout: int | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[int] | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in _MAKE_ELASTIC)

    def validate(self, num_proc: int | None, has_hosts: bool) -> None:
        """Checks the values, without looking at hosts or environment.

        Args:
          num_proc: The value of `-np`.
          has_hosts: Whether there is a list of hosts.

        Raises:
          LaunchError: they contradict each other, or are out of range.
        """
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if given and not self:
            wanted = ", ".join(OPTIONS[name] for name in _MAKE_ELASTIC)
            raise LaunchError(f"{OPTIONS[given[0]]} is for elastic jobs: wanted one of {wanted} as well")
        for name in ("min_np", "max_np", "slots", "elastic_timeout", "reset_limit"):
            check_whole(OPTIONS[name], getattr(self, name))
        for name in ("min_np", "max_np", "slots", "elastic_timeout"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise LaunchError(f"{OPTIONS[name]} {value}: wanted 1 or more")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise LaunchError(f"--reset-limit {self.reset_limit}: wanted 0 or more")
        if self.cooldown_range is not None:
            self._check_cooldown()
        if not self:
            return
        if num_proc is None and self.min_np is None:
            raise LaunchError("-np is missing: wanted the number of processes to start with, or --min-np")
        limits = self._numbers(num_proc)
        check_size(max(limits[1], limits[2] or 1), "-np, --max-np")
        numbers = {"--min-np": limits[0], "-np": limits[1], "--max-np": limits[2]}
        sizes = {name: number for name, number in numbers.items() if number is not None}
        if list(sizes.values()) != sorted(sizes.values()):
            listed = ", ".join(f"{name} {number}" for name, number in sizes.items())
            raise LaunchError(f"got {listed}; wanted --min-np <= -np <= --max-np")
        if self.host_discovery_script is not None and has_hosts:
            raise LaunchError("got hosts and a host discovery script, wanted one of them")

    def _check_cooldown(self) -> None:
        given: Any = self.cooldown_range
        values = list(given) if isinstance(given, Sequence) else [given]
        if (
            len(values) != 2
            or not all(type(value) is int for value in values)
            or not 1 <= values[0] <= values[1] <= _MOST_COOLDOWN_S
        ):
            raise LaunchError(
                f"--blacklist-cooldown-range {' '.join(map(str, values))}: wanted two numbers of seconds, the lower "
                f"first, from 1 to {_MOST_COOLDOWN_S}"
            )

    def _numbers(self, num_proc: int | None) -> tuple[int, int, int | None]:
        """Returns the smallest, the first and the largest number of processes."""
        first = self.min_np if num_proc is None else num_proc
        assert first is not None  # `validate` refuses a job without both.
        return self.min_np or first, first, self.max_np

    def plan(
        self, num_proc: int | None, hosts: Sequence[Host] | None, environment: Mapping[str, str], **rest: Any
    ) -> ElasticPlan:
        """Returns the plan of the job. `validate` must have been called.

        Args:
          num_proc: The value of `-np`.
          hosts: The list of hosts, if there is one.
          environment: The launcher's environment variables.
          **rest: Other attributes of the plan.

        Raises:
          LaunchError: a variable is not a number.
        """
        least, first, most = self._numbers(num_proc)
        timeout_s = self.elastic_timeout
        if timeout_s is None:
            timeout_s = whole_seconds(TIMEOUT_VARIABLE, environment.get(TIMEOUT_VARIABLE, str(_TIMEOUT_S)))
        slots: dict[str, int] = {}
        for host in hosts or [Host("localhost", self.slots or first)]:
            slots[host.target] = slots.get(host.target, 0) + host.slots
        return ElasticPlan(
            Limits(first, least, most, timeout_s, self.reset_limit),
            hosts=slots,
            script=self.host_discovery_script,
            slots=self.slots,
            cooldown=None if self.cooldown_range is None else Cooldown(*self.cooldown_range),
            **rest,
        )

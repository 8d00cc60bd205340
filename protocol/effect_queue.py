"""Where a machine's parts put their effects, and where job numbers come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import JobId
from protocol.machine import Do, Effect, Emit, Job, Send, Start
from protocol.messages import Message
from protocol.trace import Fact


@dataclass(slots=True)
class EffectQueue:
    """Effects collected while one event is handled, and the jobs that are out."""

    out: list[Effect] = field(default_factory=list)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    last_job: int = 0

    def send(self, peer: bytes, message: Message) -> None:
        self.out.append(Send(peer, message))

    def emit(self, fact: Fact) -> None:
        self.out.append(Emit(fact))

    def do(self, action: object) -> None:
        self.out.append(Do(action))

    def start(self, job: Job) -> JobId:
        """The number under which this job's answer will come."""
        self.last_job += 1
        number = JobId(self.last_job)
        self.jobs[number] = job
        self.out.append(Start(number, job))
        return number

    def finish(self, number: JobId) -> Job | None:
        """The job that is answered now; None when it was answered before."""
        return self.jobs.pop(number, None)

    def forget(self, kinds: tuple[type, ...]) -> None:
        """Answers to jobs of these kinds that are out mean nothing any more."""
        self.jobs = {number: job for number, job in self.jobs.items() if not isinstance(job, kinds)}

    def drain(self) -> list[Effect]:
        """The effects of this event, and an empty desk for the next."""
        out, self.out = self.out, []
        return out

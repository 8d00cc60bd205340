"""Jobs of a merge as messages between leader and merger, and back."""

from __future__ import annotations

from protocol import messages
from protocol.ids import Count
from protocol.log.records import StateDigests
from protocol.merge_rules import NORMS_KNOWN_MAX
from syncer_node.machine import jobs

SEED_BYTES = 8


def push_name(push: jobs.PushId) -> messages.PushName:
    return messages.PushName(*push)


def push_id(name: messages.PushName) -> jobs.PushId:
    return (name.learner, name.incarnation, name.sequence)


def merge_order(job: jobs.Merge, epoch: Count, term: Count, order: Count) -> messages.MergeOrder:
    """The order that has a merger carry out this merge."""
    return messages.MergeOrder(
        epoch=epoch,
        term=term,
        order=order,
        round=job.round,
        fragment=job.fragment,
        version=job.version,
        codec=job.codec,
        outer=job.outer,
        parts=tuple(
            messages.OrderedPush(
                part.learner, part.header, part.weight, part.standing, part.novelty
            )
            for part in job.parts
        ),
        against=_reference(job.against) if job.against is not None else None,
    )


def _reference(told: jobs.Against) -> messages.OrderedReference:
    return messages.OrderedReference(
        typical=told.typical,
        norms=told.norms,
        is_established=told.is_established,
        seed=told.seed.to_bytes(SEED_BYTES, "big"),
        steps=told.steps,
        tensors=told.tensors,
        repeats=told.repeats,
        typical_novelty=told.typical_novelty,
        strays=told.strays,
        novelty_strays=told.novelty_strays,
    )


def merge_job(order: messages.MergeOrder) -> jobs.Merge:
    """The job of a merge that was ordered: the very one that the leader would carry out."""
    told = order.against
    return jobs.Merge(
        round=order.round,
        fragment=order.fragment,
        version=order.version,
        codec=order.codec,
        outer=order.outer,
        parts=tuple(
            jobs.MergePart(part.learner, part.header, part.weight, part.standing, part.novelty)
            for part in order.parts
        ),
        against=None
        if told is None
        else jobs.Against(
            typical=told.typical,
            norms=told.norms,
            is_established=told.is_established,
            seed=int.from_bytes(told.seed, "big"),
            steps=told.steps,
            tensors=told.tensors,
            repeats=told.repeats,
            typical_novelty=told.typical_novelty,
            strays=told.strays,
            novelty_strays=told.novelty_strays,
        ),
    )


def merge_done(order: messages.MergeOrder, result: jobs.Merged) -> messages.MergeDone:
    """A merger's answer once the merge is done."""
    some = len(order.parts)
    columns = (
        *(result.norms, result.scales, result.cosines, result.trusts, result.shares),
        tuple(
            codes if at >= some - NORMS_KNOWN_MAX else b""
            for at, codes in enumerate(result.tensors or (b"",) * some)
        ),
        result.tensors_clipped or (0,) * some,
        result.expected or (1.0,) * some,
        result.repeats or (0.0,) * some,
        result.echoes or (0.0,) * some,
        result.novelties or (None,) * some,
    )
    return messages.MergeDone(
        epoch=order.epoch,
        term=order.term,
        order=order.order,
        payload=result.payload,
        payload_bytes=result.payload_bytes,
        theta=result.state.theta,
        momentum=result.state.momentum,
        parts=tuple(messages.MergedPush(*row) for row in zip(*columns, strict=True)),
        seconds=result.seconds,
        up_bytes_per_s=result.up_bytes_per_s,
        up_backlog_s=result.up_backlog_s,
    )


def merged(done: messages.MergeDone, merger: bytes) -> jobs.Merged:
    """The result of the merge, as if it had been carried out here."""
    parts = done.parts
    return jobs.Merged(
        payload=done.payload,
        payload_bytes=done.payload_bytes,
        state=StateDigests(done.theta, done.momentum),
        norms=tuple(one.norm for one in parts),
        scales=tuple(one.scale for one in parts),
        cosines=tuple(one.cosine for one in parts),
        trusts=tuple(one.trust for one in parts),
        shares=tuple(one.share for one in parts),
        seconds=done.seconds,
        tensors=tuple(one.tensors for one in parts),
        tensors_clipped=tuple(one.tensors_clipped for one in parts),
        expected=tuple(one.expected for one in parts),
        repeats=tuple(one.repeat for one in parts),
        echoes=tuple(one.echo for one in parts),
        novelties=tuple(one.novelty for one in parts),
        merger=merger,
        up_bytes_per_s=done.up_bytes_per_s,
        up_backlog_s=done.up_backlog_s,
    )

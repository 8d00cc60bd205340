"""What the daemons of syncer and witness do alike with the files of their log."""

from __future__ import annotations

from protocol.machine import Job, JobResult
from syncer_node.machine.jobs import Installed, InstallState
from syncer_node.raft import jobs
from syncer_node.storage.voter_files import VoterFiles


def keep_in_log(files: VoterFiles, job: Job) -> JobResult:
    """Carry out one job; when it returns, the disk has it."""
    match job:
        case jobs.SaveBallot(ballot):
            files.save_ballot(ballot)
            return jobs.BallotSaved(ballot)
        case jobs.Append(after, records):
            files.append(after, records)
            return jobs.Appended(after + len(records))
        case jobs.KeepProofs(certificates):
            files.keep_proofs(certificates)
            return jobs.ProofsKept()
        case InstallState(entry, summary, origins):
            files.begin_behind(entry, summary, origins)
            return Installed()
    raise AssertionError(f"nothing here carries out {type(job).__name__}")

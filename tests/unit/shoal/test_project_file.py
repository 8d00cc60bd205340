"""What people write about a project, what is said if it is wrong, what signing makes of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from host.files import keystore
from host.files.home import Home
from host.files.shard_files import ShardFiles
from host.files.signed_project import (
    SignedProject,
    open_project,
    read_signed,
    seal_project,
    write_signed,
)
from protocol import wire
from protocol.errors import BadSignature, InternalError, MalformedMessage, UserError, WrongProject
from protocol.project import (
    Charter,
    Genesis,
    InnerSpec,
    LimitSpec,
    Origin,
    OuterSpec,
    RoundSpec,
    encode,
    project_id,
)
from protocol.signing import seal
from shoal.__main__ import main
from shoal.project import admission_commands, charter_commands, file_commands
from shoal.project.file_commands import drafted
from shoal.project.presets import PRESETS
from shoal.project.project_file import ProjectFile, make_charter, make_genesis, parse, read_file
from shoal.project.template import SECTIONS, create_text
from tests.support.mixtures import write_sources
from tests.support.tiny_project import write_text

TEXT = create_text("harbour")
PATH = Path("project.toml")
OTHER_KEY = "ab" * 32
THREE_VOTERS = "".join(
    f'\n[[voters]]\nkey = "{key * 32}"\nrole = "{role}"\npriority = 1\n'
    for key, role in (("01", "syncer"), ("02", "witness"))
)


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(text, PATH)
    message = str(caught.value)
    assert message.startswith("project.toml: ")
    assert "\n" not in message
    return message.removeprefix("project.toml: ")


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new)


def test_the_text_that_is_created_is_sound_and_says_what_it_says():
    file = parse(TEXT, PATH)
    assert (file.name, file.seed, file.architecture) == ("harbour", 1, "LlamaForCausalLM")
    assert (file.fragments, file.rounds.local_steps, file.rounds.quorum) == (4, 24, 1)
    assert file.limits.tokens == 20_000_000
    assert file.config["tie_word_embeddings"] is True
    assert [(line.key, line.voter.role) for line in file.voters] == [(None, "syncer")]


def test_every_key_is_explained_and_no_line_is_too_long():
    for section in SECTIONS:
        for line in section.lines:
            assert line.comment, f"{section.name}.{line.key}"
    assert max(map(len, TEXT.splitlines())) <= 100


@pytest.mark.parametrize(
    ("section", "kind"),
    [("training", InnerSpec), ("outer", OuterSpec), ("rounds", RoundSpec), ("limits", LimitSpec)],
)
def test_every_field_of_the_charter_can_be_written(section, kind):
    written = next(one for one in SECTIONS if one.name == section)
    assert [line.key for line in written.lines] == [
        field.name for field in msgspec.structs.fields(kind)
    ]


def test_the_paper_preset_is_sound_says_what_was_not_published_and_every_note_has_a_line():
    paper = PRESETS["paper"]
    text = create_text("paper", changes=paper.values, comments=paper.comments)
    assert max(map(len, text.splitlines())) <= 100
    file = parse(text, PATH)
    assert (file.fragments, file.rounds.local_steps, file.rounds.overlap_steps) == (24, 24, 2)
    assert (file.rounds.quorum, file.rounds.eligible, file.rounds.pace_share) == (1, "step", 0.0)
    assert (file.inner.optimizer, file.outer.nesterov, file.rules.embeddings) == (
        "adamw",
        True,
        "mean",
    )
    keys = {f"{section.name}.{line.key}" for section in SECTIONS for line in section.lines}
    assert {*paper.values, *paper.comments} <= keys
    for key in ("learning_rate = 0.7", "momentum = 0.9", "grace_safety = 0.9", "beta1 = 0.9"):
        line = next(one for one in text.splitlines() if one.startswith(key))
        assert "no published value known" in line


def test_with_the_preset_for_slow_lines_every_fragment_may_be_in_flight():
    slow = PRESETS["slow-lines"]
    text = create_text("slow", changes=slow.values, comments=slow.comments)
    assert max(map(len, text.splitlines())) <= 100
    file = parse(text, PATH)
    assert file.rounds.overlap_steps == file.fragments
    assert (file.rounds.apply, file.rounds.up_codec) == ("rebase", "int2")
    keys = {f"{section.name}.{line.key}" for section in SECTIONS for line in section.lines}
    assert {*slow.values, *slow.comments} <= keys


def test_no_preset_has_more_rounds_in_flight_than_a_base_model_has_fragments():
    text, _ = drafted("few", preset="slow-lines", changes={"model.fragments": 3})
    assert parse(text, PATH).rounds.overlap_steps == 3


def test_the_small_preset_is_the_text_as_it_is():
    small = PRESETS["small"]
    assert create_text("harbour", changes=small.values, comments=small.comments) == TEXT


def test_other_values_are_written_where_asked():
    text = create_text(
        'a "quoted" näme', changes={"rounds.quorum": 3, "model.config.rms_norm_eps": 1e-5}
    )
    file = parse(text, PATH)
    assert file.name == 'a "quoted" näme'
    assert file.rounds.quorum == 3
    assert file.config["rms_norm_eps"] == 1e-5
    with pytest.raises(InternalError, match="quorm"):
        create_text("n", changes={"rounds.quorm": 3})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "quorum = 1 ",
            'quorum = "two" ',
            'rounds.quorum must be an integer from 1 to 1024, not "two"',
        ),
        (
            "quorum = 1 ",
            "quorum = 1.0 ",
            "rounds.quorum must be an integer from 1 to 1024, not 1.0",
        ),
        (
            "quorum = 1 ",
            "quorum = true ",
            "rounds.quorum must be an integer from 1 to 1024, not true",
        ),
        ("quorum = 1 ", "quorum = 0 ", "rounds.quorum must be an integer from 1 to 1024, not 0"),
        ("quorum = 1 ", "quorm = 1 ", "rounds.quorm is not a known key; did you mean quorum?"),
        ("[outer]", "[outre]", "outre is not a known key; did you mean outer?"),
        (
            "momentum = 0.8",
            "momentum = 1.0",
            "outer.momentum must be a number of at least 0 and below 1",
        ),
        ("alpha = 0.5", "alpha = 1", "rounds.alpha must be a number of at least 0 and below 1"),
        (
            "patience_s = 20.0",
            "patience_s = 0",
            "rounds.patience_s must be a number above 0 and at most",
        ),
        ("grad_norm_max = 1.0", "grad_norm_max = nan", "training.grad_norm_max must be a number"),
        (
            'apply = "overwrite"',
            'apply = "mix"',
            'must be one of "blend", "overwrite", "rebase", not "mix"',
        ),
        (
            'optimizer = "adamw"',
            'optimizer = "lion"',
            'training.optimizer must be one of "adamw", "muon", not "lion"',
        ),
        ("seed = 1 ", "seed = -1 ", "project.seed must be an integer from 0"),
        ('name = "harbour"', 'name = ""', "project.name must be text of 1 to 64 characters"),
        ('name = "harbour"', 'name = "a\\u001bb"', "project.name must be printable"),
        ("tokens = 20_000_000", "tokens = 0", "limits.tokens must be an integer from 1"),
        ("tokens = 20_000_000", "tokens = 100", "limits.tokens must be at least 2048"),
        (
            "quorum = 1 ",
            "quorum = 300 ",
            "rounds.quorum must be at most limits.learners (256), not 300",
        ),
        (
            "participants_max = 0",
            "participants_max = 3",
            "rounds.participants_max must be 0, or at least 4 and rounds.quorum (1), not 3",
        ),
        (
            "overlap_steps = 2",
            "overlap_steps = 9",
            "rounds.overlap_steps must be at most model.fragments",
        ),
        ("vocab_size = 257", "vocab_size = 1979-01-01", "model.config.vocab_size must be"),
        ('source = "python-stdlib"', 'source = "file"', "data.location must not be empty"),
        ('location = ""', 'location = "x"', 'data.location must be ""'),
        ("publish = false", 'publish = "no"', 'data.publish must be true or false, not "no"'),
        (
            "banned = []",
            'banned = ["me"]',
            'admission.banned must be a key of 64 hex digits, not "me"',
        ),
        ('key = "this host"', 'key = "me"', 'voters.1.key must be "this host" or a key of 64 hex'),
        ('role = "syncer"', 'role = "witness"', 'voters need at least one with role = "syncer"'),
        ("priority = 10", "priority = 101", "voters.1.priority must be an integer from 0 to 100"),
        ("[outer]", "[outer", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_what_is_allowed(old, new, words):
    assert words in refusal(changed(old, new))


@pytest.mark.parametrize("key", ["seed", "fragments", "location", "beta1", "quorum", "lease_s"])
def test_a_missing_key_is_named(key):
    lines = [line for line in TEXT.splitlines() if not line.startswith(f"{key} =")]
    # The comment of a long explanation goes on below its key and may stay.
    assert f".{key} is missing" in refusal("\n".join(lines))


def test_a_missing_section_is_named_and_admission_may_be_left_out():
    start, end = TEXT.index("[rounds]"), TEXT.index("[limits]")
    assert "rounds is missing" in refusal(TEXT[:start] + TEXT[end:])
    start, end = TEXT.index("[admission]"), TEXT.index("[[voters]]")
    assert parse(TEXT[:start] + TEXT[end:], PATH).banned == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.optimizer": "muon"}, "only with the optimizer adamw: muon keeps nothing"),
        ({"training.beta2": 0.4}, "only where beta1 x beta1 < beta2 < 1"),
    ],
)
def test_optimizer_state_of_others_is_refused_where_nobody_could_judge_it(changes, words):
    text = create_text("n", changes={"training.moments": "peer", **changes})
    assert f'training.moments can be "peer" {words}' in refusal(text)
    assert parse(create_text("n", changes=changes), PATH).inner.moments == "fresh"


def test_two_voters_are_refused_and_three_are_welcome():
    two = TEXT + THREE_VOTERS[: THREE_VOTERS.index("[[voters]]", 5)]
    assert "cannot outvote each other" in refusal(two)
    assert len(parse(TEXT + THREE_VOTERS, PATH).voters) == 3
    assert "twice" in refusal(TEXT + THREE_VOTERS.replace("02" * 32, "01" * 32))


def test_paths_start_beside_the_file_and_a_home_directory_stays_everyones_own(tmp_path):
    text = create_text("n", changes={"data.source": "file", "data.location": "a.txt"})
    assert parse(text, tmp_path / "p.toml").data.location == str(tmp_path / "a.txt")
    text = create_text("n", changes={"data.source": "file", "data.location": "~/a.txt"})
    assert parse(text, tmp_path / "p.toml").data.location == "~/a.txt"


def test_a_file_that_is_absent_or_no_text_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="shoal project create"):
        read_file(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        read_file(tmp_path / "odd.toml")


# Signing


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signing")
    write_text(folder / "text.txt")
    return folder


def small_text(**changes: object) -> str:
    values = {
        "data.source": "file",
        "data.location": "text.txt",
        "data.sequence_tokens": 32,
        "data.heldout_frac": 0.2,
        "rounds.overlap_steps": 2,
        "model.config.hidden_size": 48,
        "model.config.intermediate_size": 96,
        "model.config.num_hidden_layers": 2,
        "model.config.num_attention_heads": 2,
        "model.config.num_key_value_heads": 2,
    }
    return create_text("tiny", changes={**values, **changes})


def sign(file: ProjectFile, place: Path, this_host: bytes = b"h" * 32, former=None):
    """The project as `shoal project sign` stores it."""
    owner = keystore.load_or_create(place / "owner.key")
    genesis = make_genesis(file, owner=owner.key, data_cache=place / "cache")
    project = project_id(encode(genesis))
    old = former.charter if former is not None and former.id == project else None
    charter = make_charter(file, project=project, this_host=this_host, former=old)
    return former.stored() if charter == old else seal_project(genesis, charter, owner)


def signed(place: Path, *, former=None, **changes: object) -> SignedProject:
    file = parse(small_text(**changes), place / "tiny.toml")
    return sign(file, place, former=former)


def test_text_is_published_where_the_file_says_so_and_signing_again_is_the_same_project(place):
    genesis = wire.decode(signed(place, **{"data.publish": True}).genesis, Genesis)
    files = ShardFiles(place / "cache", genesis)
    assert files.look() == list(range(len(files.table.shards)))
    assert sum(one.sequences for one in files.table.shards[: files.table.train_shards]) == (
        genesis.data.blocks * genesis.data.block_sequences
    )
    again = wire.decode(signed(place, **{"data.publish": True}).genesis, Genesis)
    assert again == genesis
    assert wire.decode(signed(place).genesis, Genesis).published is None


def test_data_of_training_code_cannot_be_published():
    changes = {"data.source": "own", "data.location": "somewhere", "data.publish": True}
    assert "only text, chats and images are" in refusal(create_text("a", changes=changes))


def test_a_signed_project_holds_what_the_file_says_and_what_was_counted(place):
    write_signed(place / "tiny.shoal", signed(place))
    opened = read_signed(place / "tiny.shoal")
    genesis, genesis_bytes, charter, envelope, files = opened
    assert files == ()
    assert genesis.name == "tiny"
    assert genesis.data.blocks > 0
    assert genesis.data.digest != bytes(32)
    assert genesis.model.tensors
    assert genesis_bytes == encode(genesis)
    assert charter.project == opened.id
    assert charter.revision == 1
    assert charter.voters[0].key == b"h" * 32
    assert envelope.signer == genesis.owner
    assert opened.stored() == signed(place)


def test_signing_again_keeps_the_project_and_counts_the_charters_revisions(place):
    write_signed(place / "again.shoal", signed(place))
    first = read_signed(place / "again.shoal")
    assert signed(place, former=first) == first.stored()
    write_signed(place / "again.shoal", signed(place, former=first, **{"rounds.quorum": 2}))
    second = read_signed(place / "again.shoal")
    assert (second.id, second.charter.revision) == (first.id, 2)
    other = signed(place, former=second, **{"project.seed": 2})
    assert open_project(other.genesis, other.charter).charter.revision == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.fragments": 500}, "fragments"),
        ({"model.config.vocab_size": 100}, "vocab_size"),
        ({"data.sequence_tokens": 512}, "positions"),
        ({"model.config.no_such_key": 1}, "no_such_key"),
        ({"model.architecture": "NoSuchModel"}, "NoSuchModel"),
        ({"data.location": "absent.txt"}, "absent.txt"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_files_name(place, change, words):
    with pytest.raises(UserError, match=words) as caught:
        signed(place, **change)
    assert str(caught.value).startswith("tiny.toml: ")


def test_several_voters_are_signed_with_this_host_in_its_place(place):
    file = parse(small_text() + THREE_VOTERS, place / "tiny.toml")
    envelope = sign(file, place, b"\7" * 32).charter
    charter = wire.decode(envelope.payload, Charter)
    assert [voter.key for voter in charter.voters] == [b"\7" * 32, b"\1" * 32, b"\2" * 32]
    assert [voter.role for voter in charter.voters] == ["syncer", "syncer", "witness"]


def test_this_host_cannot_vote_twice(place):
    file = parse(small_text() + THREE_VOTERS, place / "tiny.toml")
    with pytest.raises(UserError, match="this host twice"):
        sign(file, place, b"\1" * 32)


def three_voters(place: Path, *, former=None, **changes: object) -> SignedProject:
    file = parse(small_text(**changes) + THREE_VOTERS, place / "tiny.toml")
    return sign(file, place, former=former)


def test_signing_again_keeps_what_is_no_matter_of_the_file(place):
    made = three_voters(place)
    first = open_project(made.genesis, made.charter)
    voters = tuple(
        msgspec.structs.replace(voter, disk=3 if voter.role == "witness" else 0)
        for voter in reversed(first.charter.voters)
    )
    charter = msgspec.structs.replace(
        first.charter, revision=8, epoch=2, origin=Origin(17, bytes(32)), voters=voters
    )
    sealed = seal_project(first.genesis, charter, keystore.load_or_create(place / "owner.key"))
    former = open_project(sealed.genesis, sealed.charter)
    assert three_voters(place, former=former) == sealed, "another order is no change"
    again = three_voters(place, former=former, **{"seat.durability": "majority"})
    changed = open_project(again.genesis, again.charter).charter
    assert changed == msgspec.structs.replace(charter, revision=9, durability="majority")


def test_one_voter_is_changed_at_a_time_and_the_message_says_how(place):
    made = signed(place)
    with pytest.raises(UserError) as caught:
        three_voters(place, former=open_project(made.genesis, made.charter))
    message = str(caught.value)
    assert message.startswith("tiny.toml: change one voter at a time: ")
    assert "added syncer 01010101; added witness 02020202" in message
    assert "shoal project add-syncer" in message
    assert "\n" not in message


def test_signing_does_not_silently_undo_what_a_verb_changed(place, tmp_path):
    home = Home(tmp_path / "home")
    path = place / "undone.toml"
    path.write_text(small_text())
    assert file_commands.sign(path, home=home)[-1].startswith("next: shoal syncer run")
    charter_commands.add_syncer(OTHER_KEY, path, priority=1, home=home)
    with pytest.raises(UserError, match="removed syncer abababab") as caught:
        file_commands.sign(path, home=home)
    assert "shoal project sign --change-voter" in str(caught.value)
    assert len(read_signed(path.with_suffix(".shoal")).charter.voters) == 2
    said = file_commands.sign(path, home=home, change_voter=True)
    assert "changed     removed syncer abababab" in said
    charter_commands.set_values(path, "rounds.quorum=2", home=home)
    said = file_commands.sign(path, home=home)
    assert "changed     rounds.quorum = 1, was 2" in said
    assert read_signed(path.with_suffix(".shoal")).charter.revision == 5


def test_a_lost_signed_file_does_not_begin_the_revisions_anew(place, tmp_path):
    home = Home(tmp_path / "home")
    path = place / "lost.toml"
    path.write_text(small_text(**{"project.seed": 7}))
    file_commands.sign(path, home=home)
    admission_commands.ban(OTHER_KEY, path, home=home)
    path.with_suffix(".shoal").unlink()
    file_commands.sign(path, home=home)
    assert read_signed(path.with_suffix(".shoal")).charter.revision == 3


def test_a_file_from_before_the_moving_average_has_none():
    start, end = TEXT.index("ema = "), TEXT.index("# When a fragment is merged")
    assert parse(TEXT[:start] + TEXT[end:], PATH).outer.ema == 0.0


def test_a_file_from_before_schedules_has_a_cosine_and_no_z_loss():
    left = [
        line
        for line in TEXT.splitlines()
        if not line.startswith(("schedule = ", "decay_frac = ", "z_loss = "))
    ]
    assert len(left) == len(TEXT.splitlines()) - 3
    inner = parse("\n".join(left), PATH).inner
    assert (inner.schedule, inner.z_loss) == ("cosine", 0.0)
    assert parse(TEXT.replace('"cosine"', '"wsd"'), PATH).inner.schedule == "wsd"


def test_durability_may_be_left_out_and_is_standby_then():
    assert parse(TEXT, PATH).durability == "standby"
    start, end = TEXT.index("# What must happen before"), TEXT.index("# Who may take part")
    assert parse(TEXT[:start] + TEXT[end:], PATH).durability == "standby"
    words = 'seat.durability must be one of "leader", "majority", "standby", not "all"'
    assert words in refusal(changed('durability = "standby"', 'durability = "all"'))


def test_a_byte_flipped_anywhere_in_a_signed_file_is_noticed(place):
    path = place / "flipped.shoal"
    write_signed(path, signed(place))
    content = path.read_bytes()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(UserError, match=r"shoal project sign .*flipped\.toml"):
            read_signed(path)


@pytest.mark.parametrize("content", [b"", b"text", msgspec.msgpack.encode(["shoal-project", 1])])
def test_what_is_no_signed_project_is_refused(tmp_path, content):
    (tmp_path / "p.shoal").write_bytes(content)
    with pytest.raises(UserError, match="Sign it again"):
        read_signed(tmp_path / "p.shoal")
    with pytest.raises(UserError, match="no file"):
        read_signed(tmp_path / "absent.shoal")


def test_only_the_owners_word_about_this_very_project_counts(place, tmp_path):
    made = signed(place)
    stranger = keystore.load_or_create(tmp_path / "stranger.key")
    opened = open_project(made.genesis, made.charter)

    class Hand:
        def __init__(self, identity):
            self.key, self.sign = identity.key, identity.sign

    forged = seal("charter", opened.id, made.charter.payload, Hand(stranger))
    with pytest.raises(BadSignature):
        open_project(made.genesis, forged)
    owner = Hand(keystore.load_or_create(place / "owner.key"))
    foreign = encode(msgspec.structs.replace(opened.charter, project=bytes(32)))
    with pytest.raises(WrongProject):
        open_project(made.genesis, seal("charter", opened.id, foreign, owner))
    # Floats where the canonical form has them, but one field too many: decodes, and is not ours.
    fields = msgspec.msgpack.decode(made.genesis)
    unused = [None] * (len(Genesis.__struct_fields__) - len(fields))
    longer = msgspec.msgpack.encode([*fields, *unused, 0])
    assert msgspec.msgpack.decode(longer, type=Genesis)
    with pytest.raises(MalformedMessage, match="canonical"):
        open_project(longer, made.charter)


def test_a_project_that_a_former_version_signed_is_read(place):
    made = signed(place)
    opened = open_project(made.genesis, made.charter)
    outer, *_, guard = (fields := msgspec.msgpack.decode(made.charter.payload))[5:]
    unused = ("resumed", "paused_at_s", "about")
    assert opened.charter.__struct_fields__[len(fields) :] == unused
    assert guard == "pause"
    former = [*fields[:5], outer[:-2], *fields[6:-1]]
    envelope = seal(
        "charter",
        opened.id,
        msgspec.msgpack.encode(former),
        keystore.load_or_create(place / "owner.key"),
    )
    read = open_project(made.genesis, envelope)
    outer = read.charter.outer
    assert (read.charter.guard, outer.probes_frac, outer.ema) == ("off", 0.0, 0.0)
    assert (read.envelope, read.id) == (envelope, opened.id)


def test_a_hub_location_is_a_name_with_its_owner():
    text = create_text("n", changes={"data.source": "hub", "data.location": "owner/stories:small"})
    assert parse(text, PATH).data.location == "owner/stories:small"
    with pytest.raises(UserError, match=r"data.location must be OWNER/NAME"):
        parse(text.replace("owner/stories:small", "text"), PATH)


def test_chats_lie_in_files_or_on_the_hub():
    text = create_text("n", changes={"data.source": "chats", "data.location": "hub:owner/chats@v1"})
    assert parse(text, PATH).data.location == "hub:owner/chats@v1"
    with pytest.raises(UserError, match=r"data.location must be hub:OWNER/NAME or hub:OWNER"):
        parse(text.replace("owner/chats", "chats"), PATH)
    files = parse(text.replace("hub:owner/chats@v1", "chats"), PATH)
    assert files.data.location == str(PATH.absolute().parent / "chats")


# Who may take part.


def admission(text: str) -> str:
    """The file with these lines as its whole table [admission]."""
    start, end = TEXT.index("[admission]"), TEXT.index("# The hosts whose signatures")
    return f"{TEXT[:start]}[admission]\n{text}\n{TEXT[end:]}"


def test_a_file_says_who_takes_part():
    file = parse(TEXT, PATH)
    assert (file.admission, file.allowed, file.banned) == ("open", (), ())
    said = admission(f'rule = "list"\nallowed = ["{OTHER_KEY}"]\nbanned = []')
    file = parse(said, PATH)
    assert (file.admission, file.allowed) == ("list", (bytes.fromhex(OTHER_KEY),))
    words = 'admission.rule must be one of "invite", "list", "open", not "closed"'
    assert words in refusal(admission('rule = "closed"\nbanned = []'))
    assert "admission.allowed must be a key" in refusal(admission('allowed = ["x"]\nbanned = []'))
    assert "a list of at most 4,096 keys" in refusal(admission("allowed = 3\nbanned = []"))


def test_a_file_of_before_changes_nothing_of_what_the_owner_set_since(place):
    """Signed again, it must not open what was closed; revoked invites are no matter of any file."""
    former = made_charter(parse(TEXT, PATH), None)
    former = msgspec.structs.replace(
        former, admission="invite", allowed=(bytes(32),), revoked=(bytes(16),)
    )
    again = made_charter(parse(admission("banned = []"), PATH), former)
    assert again is former
    opened = made_charter(parse(TEXT, PATH), former)
    assert (opened.admission, opened.allowed) == ("open", ())
    assert opened.revoked == (bytes(16),)


# What the page says.


def about(text: str) -> str:
    """The file with these lines as its whole table [page]."""
    start, end = TEXT.index("[page]"), TEXT.index("# The hosts whose signatures")
    return f"{TEXT[:start]}{text}\n{TEXT[end:]}"


def test_the_owners_words_are_in_the_charter_and_a_file_without_them_keeps_them():
    first = made_charter(parse(about('[page]\nabout = "Why.\\n\\nAnd how."'), PATH), None)
    assert first.about == "Why.\n\nAnd how."
    assert made_charter(parse(about(""), PATH), first) is first
    silent = made_charter(parse(about('[page]\nabout = ""'), PATH), first)
    assert (silent.about, silent.revision) == (None, 2)
    with pytest.raises(UserError, match=r"page.about must be text of 0 to 2000 characters"):
        parse(about(f'[page]\nabout = "{2001 * "x"}"'), PATH)


def test_a_charter_without_words_is_written_as_before_there_were_any():
    plain = made_charter(parse(TEXT, PATH), None)
    told = msgspec.structs.replace(plain, about="Why.")
    assert wire.decode(encode(plain), Charter) == plain
    assert wire.decode(encode(told), Charter) == told
    # With every field there is, as the version wrote it that knew no words.
    former = msgspec.msgpack.encode([getattr(plain, one) for one in FIELDS_BEFORE])
    assert wire.decode(former, Charter) == plain


FIELDS_BEFORE = Charter.__struct_fields__[: Charter.__struct_fields__.index("about")]


def made_charter(file, former):
    return make_charter(file, project=bytes(32), this_host=bytes(32), former=former)


# A mixture


def mixture(*tables: str, **changes: object) -> str:
    """A project file with these tables of sources."""
    text = create_text("mixed", changes={"data.source": "mixture", **changes})
    return text + "".join(f"\n[[data.sources]]\n{one}\n" for one in tables)


NOTES = 'source = "folder"\nlocation = "notes"\nweight = 3'
STORIES = 'source = "jsonl"\nlocation = "stories.jsonl"\nweight = 7.0\ntext_field = "body"'


def test_the_sources_of_a_mixture_have_weights_places_and_fields_of_their_own(tmp_path):
    found = parse(mixture(STORIES, NOTES), tmp_path / "p.toml").mixture
    assert [(one.source, one.location, one.text_field, one.weight) for one in found] == [
        ("jsonl", str(tmp_path / "stories.jsonl"), "body", 7.0),
        ("folder", str(tmp_path / "notes"), "text", 3.0),
    ]
    assert parse(TEXT, PATH).mixture is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (mixture(), "data.sources must be 2 to 32 tables, each written as [[data.sources]]"),
        (mixture(NOTES), "data.sources must be 2 to 32 tables"),
        (
            mixture(NOTES, STORIES, **{"data.source": "python-stdlib"}),
            'data.sources are read only with source = "mixture"',
        ),
        (mixture(NOTES, STORIES.replace("7.0", "0")), "data.sources.2.weight must be a number abo"),
        (mixture(NOTES, STORIES.replace("weight", "wait")), "data.sources.2.wait is not a known"),
        (mixture(NOTES, 'source = "jsonl"\nweight = 1'), "sources.2.location must not be empty"),
        (mixture(NOTES, 'source = "images"\nweight = 1'), 'part of a mixture: "images"; text and'),
        (mixture(NOTES, NOTES), 'data.sources name 2 files or folders "notes"; learners keep'),
        (mixture(NOTES, STORIES, **{"data.location": "x"}), 'must be "" for the source mixture'),
    ],
)
def test_what_is_wrong_in_a_mixture_is_named(text, words):
    assert words in refusal(text)


def test_copies_need_no_names_where_the_text_is_published():
    text = mixture(NOTES, NOTES, **{"data.publish": True})
    assert len(parse(text, PATH).mixture) == 2


@pytest.mark.parametrize("is_published", [False, True])
def test_a_mixture_is_signed_with_what_its_sources_have(tmp_path, is_published, capsys):
    write_sources(tmp_path)
    changes = {"data.source": "mixture", "data.location": "", "data.publish": is_published}
    path = tmp_path / "mixed.toml"
    path.write_text(
        small_text(**changes)
        + "".join(
            f'\n[[data.sources]]\nsource = "jsonl"\nlocation = "{name}.jsonl"\nweight = {weight}\n'
            for name, weight in (("a", 0.7), ("n", 0.3))
        )
    )
    for _ in range(2):
        assert main(["--home", str(tmp_path / "home"), "project", "sign", str(path)]) == 0
    said = capsys.readouterr().out
    assert "source      70.0% jsonl" in said
    assert "unchanged, still signed" in said
    genesis = read_signed(path.with_suffix(".shoal")).genesis
    assert [one.weight for one in genesis.mixture] == [0.7, 0.3]
    assert min(one.sequences for one in genesis.mixture) > 100
    assert (genesis.published is not None) == is_published
    (tmp_path / "n.jsonl").unlink()
    assert main(["--home", str(tmp_path / "home"), "project", "sign", str(path)]) == 2
    assert "n.jsonl" in capsys.readouterr().err

"""What a program prints and how it ends, as the process transport tells it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.transports.programs import (
    collect,
    private_directory,
    python,
    shell,
    start,
    text_of,
    transport,
)

import fallbackd
from fallbackd.backends.variables import instead_of_file
from fallbackd.core.protocol import HttpRequest, NotStarted, ProcessExit
from fallbackd.transports.process.recording import read_exit


async def test_the_exit_code_and_both_streams_arrive(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(
            by, shell("echo out; echo err >&2; exit 7"), private_directory(tmp_path)
        )
        chunks = await collect(running)
    assert text_of(chunks) == b"out\n"
    assert text_of(chunks, "stderr") == b"err\n"
    assert isinstance(running.exit, ProcessExit)
    assert (running.exit.code, running.exit.signal, running.exit.gone) == (7, None, True)
    assert not running.exit.stopped
    assert running.exit.at >= chunks[-1].at


async def test_a_temporary_directory_of_its_own_goes_with_the_program(tmp_path: Path) -> None:
    writes = shell('mkdir "$TMPDIR/a"; echo x > "$TMPDIR/a/b"; printf %s "$TMPDIR"')
    directory = private_directory(tmp_path)
    async with transport() as by:
        running = await start(by, writes, directory, own_tmp=True)
        place = text_of(await collect(running)).decode()
    assert place == os.path.join(directory, "tmp")
    assert not os.path.exists(place)
    assert read_exit(directory) is not None


async def test_a_signal_that_ends_the_program_is_told(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(by, shell("kill -SEGV $$"), private_directory(tmp_path))
        await collect(running)
    assert isinstance(running.exit, ProcessExit)
    assert (running.exit.code, running.exit.signal) == (None, 11)


async def test_streams_are_told_apart_in_the_order_of_writing(tmp_path: Path) -> None:
    step = tmp_path / "step"
    code = f"""
        import os, time
        for n in range(6):
            os.write(1 + n % 2, b"%d" % n)
            while not os.path.exists({str(step)!r} + str(n)):
                time.sleep(0.001)
    """
    seen = []
    async with transport() as by:
        running = await start(by, python(code), private_directory(tmp_path))
        async for chunk in running.chunks():
            seen.append((chunk.stream, chunk.data))
            Path(f"{step}{len(seen) - 1}").touch()
    names = ("stdout", "stderr")
    assert seen == [(names[n % 2], b"%d" % n) for n in range(6)]


async def test_the_answer_of_a_program_that_does_not_wait_for_its_reader_fits_into_the_pipe(
    tmp_path: Path,
) -> None:
    code = """
        import fcntl, os
        os.write(2, b"%d" % fcntl.fcntl(1, fcntl.F_GETPIPE_SZ))
    """
    async with transport() as by:
        running = await start(by, python(code), private_directory(tmp_path))
        room = int(text_of(await collect(running), "stderr"))
    allowed = int(Path("/proc/sys/fs/pipe-max-size").read_text())
    assert room >= min(allowed, 1024 * 1024)


async def test_a_line_of_five_megabytes_without_an_end_is_whole(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(
            by, python("import os\nos.write(1, b'x' * 5_000_000)"), private_directory(tmp_path)
        )
        assert text_of(await collect(running)) == b"x" * 5_000_000
        assert running.log_bytes == 5_000_000


async def test_a_burst_of_short_lines_is_whole(tmp_path: Path) -> None:
    code = "for n in range(200_000): print(n)"
    async with transport() as by:
        running = await start(by, python(code), private_directory(tmp_path))
        printed = text_of(await collect(running))
    assert printed == b"".join(b"%d\n" % n for n in range(200_000))


async def test_bytes_that_are_no_text_arrive_as_they_are(tmp_path: Path) -> None:
    every = bytes(range(256)) * 64
    code = "import os\nos.write(1, bytes(range(256)) * 64)\nos.write(2, b'\\xff\\x00')"
    async with transport() as by:
        running = await start(by, python(code), private_directory(tmp_path))
        chunks = await collect(running)
    assert text_of(chunks) == every
    assert text_of(chunks, "stderr") == b"\xff\x00"


async def test_a_program_that_closes_its_output_early_is_waited_for(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""
        import os, time
        os.write(1, b"bye")
        os.close(1)
        os.close(2)
        while not os.path.exists({str(go)!r}):
            time.sleep(0.001)
        os._exit(5)
    """
    async with transport() as by:
        running = await start(by, python(code), private_directory(tmp_path))
        chunks = []
        async for chunk in running.chunks():
            chunks.append(chunk)
            go.touch()
    assert text_of(chunks) == b"bye"
    assert isinstance(running.exit, ProcessExit)
    assert running.exit.code == 5


async def test_five_megabytes_of_input_are_delivered_and_closed(tmp_path: Path) -> None:
    stdin = os.urandom(1024) * 5 * 1024
    async with transport() as by:
        running = await start(by, ("cat",), private_directory(tmp_path), stdin=stdin)
        assert text_of(await collect(running)) == stdin


async def test_a_program_that_does_not_read_its_input_just_ends(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(
            by, shell("exec 0<&-; echo done"), private_directory(tmp_path), stdin=b"x" * 5_000_000
        )
        assert text_of(await collect(running)) == b"done\n"
    assert isinstance(running.exit, ProcessExit)
    assert running.exit.code == 0


async def test_without_input_there_is_an_empty_one(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(by, shell("cat; echo end"), private_directory(tmp_path))
        assert text_of(await collect(running)) == b"end\n"


def _script(path: Path, text: str, *, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


async def test_what_the_system_refuses_is_told_by_name(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    plain = _script(tmp_path / "plain", "#!/bin/sh\n", mode=0o644)
    formless = _script(tmp_path / "formless", "just words\n")
    orphan = _script(tmp_path / "orphan", "#!/no/such/interpreter\n")
    cases = [
        (("no-such-program-anywhere",), "/", "ENOENT", "no-such-program-anywhere"),
        ((str(gone),), "/", "ENOENT", str(gone)),
        ((plain,), "/", "EACCES", plain),
        ((str(tmp_path),), "/", "EACCES", str(tmp_path)),
        ((formless,), "/", "ENOEXEC", formless),
        ((orphan,), "/", "ENOENT", orphan),
        (("true",), str(gone), "ENOENT", str(gone)),
        (("true",), plain, "ENOTDIR", plain),
        (("true", "x" * 3_000_000), "/", "E2BIG", "true"),
        (("true", "a\0b"), "/", "EINVAL", "true"),
        ((), "/", "EINVAL", ""),
    ]
    async with transport() as by:
        for number, (argv, cwd, error, path) in enumerate(cases):
            directory = private_directory(tmp_path, f"attempt{number}")
            running = await start(by, argv, directory, cwd=cwd)
            assert await collect(running) == []
            assert running.pid is None
            assert isinstance(running.exit, NotStarted), argv[:1]
            assert (running.exit.error, running.exit.path) == (error, path)
            assert running.exit.text
            assert running.exit.at > 0
            if argv == (orphan,):
                assert "interpreter" in running.exit.text


async def test_a_closed_directory_on_the_path_hides_no_missing_program(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    (tmp_path / "file").write_text("")
    for folder in (closed, tmp_path / "file"):
        async with transport() as by:
            running = await start(
                by,
                ("no-such-program-anywhere",),
                private_directory(tmp_path, f"attempt-{folder.name}"),
                env={"PATH": f"{folder}:/usr/bin"},
            )
            assert await collect(running) == []
            assert isinstance(running.exit, NotStarted)
            assert running.exit.error == "ENOENT"


async def test_the_program_is_found_on_its_own_path(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    _script(folder / "greet", "#!/bin/sh\necho hello\n")
    async with transport() as by:
        running = await start(
            by, ("greet",), private_directory(tmp_path), env={"PATH": f"/nowhere:{folder}"}
        )
        assert text_of(await collect(running)) == b"hello\n"


async def test_the_environment_is_scrubbed_and_marked(tmp_path: Path) -> None:
    inherited = {
        "PATH": os.environ["PATH"],
        "HOME": "/home/someone",
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_PID": "1",
        "WATCHDOG_USEC": "1",
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "x",
        "INVOCATION_ID": "x",
        "JOURNAL_STREAM": "8:1",
        "CREDENTIALS_DIRECTORY": "/c",
        "SYSTEMD_EXEC_PID": "1",
        "FALLBACKD_SOCKET": "/run/sock",
        "FALLBACKD_RUN": "another",
        "DROPPED": "x",
        "REPLACED": "old",
        "ODD": "caf\udce9",
    }
    async with transport(environ=inherited) as by:
        running = await start(
            by,
            ("/usr/bin/env", "-0"),
            private_directory(tmp_path),
            cwd=str(tmp_path),
            env={"REPLACED": "new"},
            unset=("DROPPED", "ABSENT"),
            marks={"FALLBACKD_DELEGATION": "d1"},
        )
        printed = text_of(await collect(running))
    seen = dict(
        os.fsdecode(line).split("=", 1) for line in printed.rstrip(b"\0").split(b"\0") if line
    )
    token = seen.pop("FALLBACKD_RUN")
    assert len(token) == 32
    assert seen.pop("FALLBACKD_INSTEAD_OF_FILE") == instead_of_file()
    assert seen == {
        "PATH": os.environ["PATH"],
        "HOME": "/home/someone",
        "FALLBACKD_SOCKET": "/run/sock",
        "REPLACED": "new",
        "ODD": "caf\udce9",
        "FALLBACKD_DELEGATION": "d1",
        "FALLBACKD_ATTEMPT": "d1.1",
        "FALLBACKD_RUN_DIRECTORY": str(tmp_path / "attempt"),
        "PWD": str(tmp_path),
    }


async def test_of_the_daemons_own_environment_a_program_is_given_what_is_on_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("UNHEARD_OF", "yes")
    monkeypatch.setenv("JAVA_HOME", "/java")
    async with transport() as by:
        running = await start(
            by,
            shell('echo "$JAVA_HOME ${NOTIFY_SOCKET-none} ${UNHEARD_OF-none}"'),
            private_directory(tmp_path),
        )
        assert text_of(await collect(running)) == b"/java none none\n"


async def test_the_prompt_is_in_no_process_list_and_no_environment(tmp_path: Path) -> None:
    prompt = b"the-secret-prompt-" + os.urandom(8).hex().encode()
    async with transport() as by:
        running = await start(
            by,
            shell("echo ready; cat >/dev/null; sleep 600"),
            private_directory(tmp_path),
            stdin=prompt,
        )
        shown = b""
        async for _ in running.chunks():
            for name in filter(str.isdigit, os.listdir("/proc")):
                for kind in ("cmdline", "environ"):
                    try:
                        shown += Path(f"/proc/{name}/{kind}").read_bytes()
                    except OSError:
                        continue
            running.stop(grace_s=0)
    assert b"sleep 600" in shown
    assert prompt not in shown


async def test_signals_files_and_session_of_the_program_are_its_own(tmp_path: Path) -> None:
    code = """
        import os, signal
        ignored = [l for l in open("/proc/self/status") if l.startswith("SigIgn")][0].split()[1]
        blocked = [l for l in open("/proc/self/status") if l.startswith("SigBlk")][0].split()[1]
        # SIGPIPE and SIGXFSZ are ignored by this interpreter itself.
        ours = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
        # 32 and 33 belong to the C library, which lets nobody reset them: as whoever started us.
        ours |= 1 << 31 | 1 << 32
        mask = os.umask(0)
        handles = sorted(int(n) for n in os.listdir("/proc/self/fd"))
        print(int(ignored, 16) & ~ours, int(blocked, 16), oct(mask), handles[:-1],
              os.getpgid(0) == os.getsid(0) == os.getpid(), os.getcwd())
    """
    async with transport(umask=0o027) as by:
        running = await start(by, python(code), private_directory(tmp_path), cwd="/usr")
        printed = text_of(await collect(running))
    assert printed == b"0 0 0o27 [0, 1, 2] True /usr\n"


async def test_a_broken_pipe_ends_the_programs_children_as_usual(tmp_path: Path) -> None:
    async with transport() as by:
        running = await start(
            by, shell("(yes; echo $? >&2) | head -n 1"), private_directory(tmp_path)
        )
        chunks = await collect(running)
    assert text_of(chunks) == b"y\n"
    assert text_of(chunks, "stderr") == b"141\n"


async def test_every_file_is_private(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    async with transport() as by:
        running = await start(
            by,
            shell("echo x"),
            directory,
            cwd=directory,
        )
        assert text_of(await collect(running)) == b"x\n"
    names = sorted(os.listdir(directory))
    assert names == [
        "attempt.json",
        "claim",
        "exit.json",
        "output.idx",
        "output.log",
    ]
    for name in names:
        assert stat.S_IMODE(os.stat(f"{directory}/{name}").st_mode) == 0o600


async def test_the_end_is_recorded_on_disk_too(tmp_path: Path) -> None:
    directory = private_directory(tmp_path)
    async with transport() as by:
        running = await start(by, shell("exit 3"), directory)
        await collect(running)
    assert read_exit(directory) == running.exit


async def test_thirty_attempts_at_once_do_not_mix(tmp_path: Path) -> None:
    results: dict[int, tuple[bytes, object]] = {}

    async with transport() as by:

        async def one(number: int) -> None:
            running = await start(
                by,
                shell(f"cat; exit {number}"),
                private_directory(tmp_path, f"attempt{number}"),
                stdin=b"%d" % number * 10_000,
            )
            results[number] = (text_of(await collect(running)), running.exit)

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)
    for number in range(30):
        printed, ended = results[number]
        assert printed == b"%d" % number * 10_000
        assert isinstance(ended, ProcessExit)
        assert ended.code == number


async def test_only_programs_are_for_this_transport(tmp_path: Path) -> None:
    async with transport() as by:
        with pytest.raises(TypeError):
            await by.open(
                HttpRequest(method="GET", url="http://localhost/"),
                attempt="d1.1",
                directory=str(tmp_path),
                env={},
            )


async def test_times_are_on_the_clock_of_the_daemon(tmp_path: Path) -> None:
    async with transport(now=lambda: 1000.0) as by:
        running = await start(by, shell("echo x"), private_directory(tmp_path))
        chunks = await collect(running)
    assert 1000.0 <= chunks[0].at < 1000.0 + 3600
    assert 1000.0 <= running.exit.at < 1000.0 + 3600


def test_the_launcher_loads_nothing_but_the_standard_library() -> None:
    """Started as the transport starts it, but without a call of `main`."""
    root = str(Path(fallbackd.__file__).parent.parent)
    look = (
        "import sys; sys.path.append(sys.argv[1]);"
        "import fallbackd.transports.process.runner.launcher;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look, root], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "fallbackd" in loaded
    assert set(loaded) - set(sys.stdlib_module_names) == {"fallbackd", "__main__"}

"""Files that a killed MPI leaves in shared memory: only the job's files are removed."""

import os

import pytest

from jaxccomp.launch import leftovers

MAPS = """\
55c8f5a00000-55c8f5a21000 rw-p 00000000 00:00 0      [heap]
7f0c00000000-7f0c00400000 rw-s 00000000 00:19 {inode} {path}
"""


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder for shared memory, simulated processes, and a list of marked processes."""
    folder, proc, marked = tmp_path / "shm", tmp_path / "proc", []
    folder.mkdir()
    proc.mkdir()
    monkeypatch.setattr(leftovers, "marked", lambda mark: list(marked))

    class Shared:
        def file(self, name):
            (folder / name).write_bytes(b"x")
            return folder / name

        def process(self, pid, path, is_of_job=True):
            (proc / str(pid)).mkdir(exist_ok=True)
            text = MAPS.format(inode=os.stat(path).st_ino, path=path)
            (proc / str(pid) / "maps").write_text(text)
            marked.extend([pid] if is_of_job else [])

        def ends(self, pid):
            (proc / str(pid) / "maps").unlink()
            marked[:] = [each for each in marked if each != pid]

        def files(self):
            return leftovers.SharedFiles("A=1", folder, proc)

    return Shared()


def test_cleanup_removes_files_created_by_the_job(shared):
    files = shared.files()
    for pid, name in ((10, "mpich_shm_12_0"), (11, "sm_segment.host.0.1234.1")):
        shared.process(pid, shared.file(name))
    files.look()
    shared.ends(10)
    shared.ends(11)
    assert files.remove() == ["mpich_shm_12_0", "sm_segment.host.0.1234.1"]
    assert files.remove() == []


@pytest.mark.parametrize("why", ["older", "foreign", "used", "other", "replaced"])
def test_cleanup_keeps_files_of_other_processes(why, shared):
    name = "my_data" if why == "other" else "mpich_shm_12_0"
    path = shared.file(name) if why == "older" else None
    files = shared.files()
    path = path or shared.file(name)
    shared.process(10, path, is_of_job=why != "foreign")
    files.look()
    shared.ends(10)
    if why == "used":
        shared.process(11, path, is_of_job=False)
    if why == "replaced":
        other = shared.file("mpich_shm_next")
        other.replace(path)
    assert files.remove() == [] and path.exists()

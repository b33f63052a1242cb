"""``init(coordinator=)`` rarely calls back into a file that already has a call on the stack."""

import json
import subprocess
import sys

import patience

# Prints calls, as (from file, to file), into a file of the package that already has a frame on the
# stack, below a frame of another file. A reader of the code has to return to such a file.
_PROGRAM = """
import json, os, socket, sys
import jaxccomp
import jaxccomp._elastic.join
folder = os.path.dirname(jaxccomp.__file__)
waiting, back = [], set()

def note(frame, event, _):
    path = frame.f_code.co_filename
    if not path.startswith(folder):
        return
    path = os.path.relpath(path, folder)
    if event == "call":
        if waiting and waiting[-1] != path and path in waiting:
            back.add((waiting[-1], path))
        waiting.append(path)
    elif event == "return" and waiting:
        waiting.pop()

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = "127.0.0.1:%d" % free.getsockname()[1]
sys.setprofile(note)
jaxccomp.init(coordinator=address, rank=0, size=1, secret="a secret of this test")
sys.setprofile(None)
print(json.dumps(sorted(back)))
"""


def test_init_with_coordinator_returns_between_files_at_most_4_times():
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM],
        capture_output=True,
        text=True,
        timeout=patience.seconds(60),
    )
    assert done.returncode == 0, done.stderr
    back = json.loads(done.stdout.splitlines()[-1])
    assert 0 < len(back) <= 4, back

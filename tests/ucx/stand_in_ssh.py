"""A stand-in for ssh: runs the command on this machine, with a login environment.

``stand_in_ssh.py LOG OPTION ... HOST COMMAND``. As with ssh, the command is not a child of the
launcher, has its own session, and detects the launcher's end only by its standard input.
"""

import json
import os
import subprocess
import sys
import time


def main(log, *arguments):
    host, command = arguments[-2:]
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps(arguments) + "\n")
    if host == "down":
        print("ssh: connect to host down port 22: Connection refused", file=sys.stderr)
        return 255
    if host == "silent":
        time.sleep(600)
    if host == "empty":  # a host whose shell runs nothing
        return 0
    if host == "bare":  # a host without this Python
        command = "exec /no/such/python"
    print("Welcome to", host, flush=True)  # like a shell's start-up file
    login = {"HOME": "/", "PATH": os.defpath, "STAND_IN_HOST": host}
    login["SSH_CONNECTION"] = "127.0.0.1 40000 127.0.0.1 22"
    return subprocess.run(["sh", "-c", command], env=login, start_new_session=True).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

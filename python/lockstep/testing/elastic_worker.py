"""The first part of a program for a worker of an elastic job that talks to the launcher itself, without TensorFlow."""

WORKER = """
import os, signal, socket, sys, time
from lockstep.launch.base.elastic_wire import ADDRESS, SECRET, WORKER, Channel

number = int(os.environ[WORKER])
host, _, port = os.environ[ADDRESS].rpartition(":")
connection = socket.create_connection((host.strip("[]"), int(port)))
channel, heard = Channel(os.environ[SECRET], False), []

def hear(*kinds):
    while True:
        for message in heard:
            if message["is"] in kinds:
                heard.remove(message)
                return message
        data = connection.recv(1 << 16)
        if not data:
            sys.exit("the launcher is gone")
        heard.extend(channel.feed(data))
        say()

def say(*messages):
    for message in messages:
        channel.say(message)
    data, channel.outgoing = channel.outgoing, b""
    connection.sendall(data)

def place(keeps_state=False):
    say({"is": "ready", "worker": number, "keeps_state": keeps_state})
    got = hear("round", "removed", "failed")
    if got["is"] != "round":
        print(got["is"], flush=True)
        sys.exit(0 if got["is"] == "removed" else 1)
    print("round {round}: {rank} of {size}".format(**got), flush=True)
    return got

open(f"pid{number}", "w").write(str(os.getpid()))
"""

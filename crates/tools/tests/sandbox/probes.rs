//! Commands that try to leave the sandbox.
//!
//! Invariants: a probe is one line of data. What must not have happened is verified from outside, the same for all of
//! them; a probe that could not do harm without a sandbox either says so, and all others are seen to do it.

/// Where a probe is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stopped {
    /// With every setting.
    Always,
    /// In a sandbox.
    Sandbox,
    /// In a sandbox with mounts of its own.
    Mounts,
}

/// Whether the probe does harm without any protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    Yes,
    /// Only as `root`.
    AsRoot,
    /// The system itself stops it, or it takes a program that may be missing.
    Perhaps,
}

/// One attempt.
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    pub(crate) from: Stopped,
    pub(crate) harm: Harm,
    /// A command of bash. Its variables name the victims; whatever contains `ESCAPED` or a secret is a success of the
    /// attacker.
    pub(crate) command: &'static str,
}

const fn probe(name: &'static str, from: Stopped, harm: Harm, command: &'static str) -> Probe {
    Probe { name, from, harm, command }
}

use Harm::{AsRoot, Perhaps, Yes};
use Stopped::{Always, Mounts, Sandbox};

/// All probes.
pub(crate) const PROBES: &[Probe] = &[
    // Files of this program.
    probe("read the token", Always, Yes, "cat $STORE/token"),
    probe(
        "read the token through a link",
        Always,
        Yes,
        "ln -s $STORE $WS/link; cat $WS/link/token; rm $WS/link",
    ),
    probe(
        "read the token through a hard link",
        Always,
        Yes,
        "ln $STORE/token $WS/hard; cat $WS/hard; rm $WS/hard",
    ),
    probe(
        "read the token by way of /proc",
        Always,
        Yes,
        "for p in /proc/[0-9]*; do cat $p/root$STORE/token; done",
    ),
    probe("read the token by way of a folder of a process", Always, Yes, "cat /proc/$VICTIM/cwd/token"),
    probe("read an open file of a process", Always, Yes, "cat /proc/$VICTIM/fd/*"),
    probe("write into the store", Always, Yes, "echo x > $STORE/journal"),
    probe("remove the store", Always, Yes, "rm -rf $STORE/*"),
    probe("rename the store", Always, Yes, "mv $STORE $STORE.old && mv $STORE.old $STORE && echo ESCAPED"),
    probe("read the configuration", Always, Yes, "cat $CONFIG/greenroom.yaml"),
    probe("write the configuration", Always, Yes, "echo 'sandbox: { mode: off }' >> $CONFIG/greenroom.yaml"),
    probe("uncover the store", Always, Perhaps, "umount $STORE; umount -l $STORE; cat $STORE/token"),
    probe(
        "uncover the store in a new namespace",
        Always,
        Perhaps,
        "unshare -Urm sh -c \"umount -l $STORE; mount -t tmpfs t $BASE; cat $STORE/token\"; unshare -m umount -l $STORE",
    ),
    probe(
        "read the disk",
        Sandbox,
        Perhaps,
        "for d in $(lsblk -rno NAME 2>/dev/null; echo vda sda nvme0n1); do head -c 16 /dev/$d > $WS/disk 2>/dev/null && [ -s $WS/disk ] && echo ESCAPED; done; rm -f $WS/disk",
    ),
    probe(
        "make a device and read it",
        Sandbox,
        Perhaps,
        "mknod $WS/disk b 254 0 && head -c 16 $WS/disk > /dev/null && echo ESCAPED; rm -f $WS/disk",
    ),
    // The host's socket and others.
    probe(
        "connect to the host's socket",
        Always,
        Yes,
        "python3 -c 'import socket,os; socket.socket(socket.AF_UNIX).connect(os.environ[\"STORE\"]+\"/host.sock\")'",
    ),
    probe("remove the host's socket", Always, Yes, "rm -f $STORE/host.sock"),
    probe(
        "connect to a service's socket",
        Sandbox,
        Yes,
        "python3 -c 'import socket,os; socket.socket(socket.AF_UNIX).connect(os.environ[\"OUTSIDE\"]+\"/service.sock\")'",
    ),
    probe(
        "connect to an abstract socket",
        Sandbox,
        Yes,
        "python3 -c 'import socket,os; socket.socket(socket.AF_UNIX).connect(\"\\0\"+os.environ[\"ABSTRACT\"])'",
    ),
    probe(
        "connect to a container engine",
        Sandbox,
        Perhaps,
        "for s in /run/docker.sock /var/run/docker.sock /run/podman/podman.sock; do python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('$s')\" 2>/dev/null && echo ESCAPED; done",
    ),
    probe(
        "connect to a message bus",
        Sandbox,
        Perhaps,
        "for s in /run/dbus/system_bus_socket /run/user/$(id -u)/bus /run/systemd/private; do python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('$s')\" 2>/dev/null && echo ESCAPED; done",
    ),
    // Other files.
    probe("write outside the workspace", Sandbox, Yes, "echo x > $OUTSIDE/file.txt"),
    probe("create outside the workspace", Sandbox, Yes, "touch $OUTSIDE/new; mkdir $OUTSIDE/newer"),
    probe("remove outside the workspace", Sandbox, Yes, "rm -f $OUTSIDE/file.txt"),
    probe("rename outside the workspace", Sandbox, Yes, "mv $OUTSIDE/file.txt $OUTSIDE/other.txt"),
    probe(
        "write through a link in the workspace",
        Sandbox,
        Yes,
        "ln -s $OUTSIDE $WS/out; echo x > $WS/out/file.txt; rm $WS/out",
    ),
    probe(
        "write through a hard link",
        Sandbox,
        Yes,
        "ln $OUTSIDE/file.txt $WS/hard && echo x > $WS/hard; rm -f $WS/hard",
    ),
    probe("move a file into the workspace", Sandbox, Yes, "mv $OUTSIDE/file.txt $WS/; rm -f $WS/file.txt"),
    probe("change permissions outside", Mounts, Yes, "chmod 777 $OUTSIDE/file.txt"),
    probe("change times outside", Mounts, Yes, "touch -d 2001-01-01 $OUTSIDE/file.txt"),
    probe("truncate outside", Sandbox, Yes, "truncate -s 0 $OUTSIDE/file.txt"),
    probe("read a hidden key", Sandbox, Yes, "cat $BASE/home/.ssh/id_ed25519"),
    probe(
        "make a mount writable",
        Mounts,
        Perhaps,
        "mount -o remount,rw /; mount -o remount,rw,bind $BASE; echo x > $OUTSIDE/file.txt",
    ),
    probe(
        "change a setting of the system",
        Mounts,
        Perhaps,
        "v=$(cat /proc/sys/kernel/core_pattern); echo \"$v\" > /proc/sys/kernel/core_pattern && echo ESCAPED",
    ),
    probe(
        "leave by chroot",
        Sandbox,
        Perhaps,
        "chroot $BASE / /bin/sh -c 'echo ESCAPED'; chroot / cat $STORE/token",
    ),
    // git and our settings in the workspace.
    probe("write a hook", Mounts, Yes, "echo 'touch x' > .git/hooks/pre-commit"),
    probe("add a hook", Mounts, Yes, "echo 'touch x' > .git/hooks/post-checkout"),
    probe(
        "replace the hooks",
        Mounts,
        Yes,
        "mv .git/hooks .git/old; mkdir .git/hooks; echo x > .git/hooks/pre-commit",
    ),
    probe("replace the repository", Mounts, Yes, "mv .git .old && mkdir .git && echo x > .git/config"),
    probe(
        "write git's configuration",
        Mounts,
        Yes,
        "git config core.fsmonitor 'touch x' || echo '[core] fsmonitor = x' >> .git/config",
    ),
    probe(
        "rename over git's configuration",
        Mounts,
        Yes,
        "echo x > .git/new; mv -f .git/new .git/config; rm -f .git/new",
    ),
    probe("redirect the repository", Sandbox, Yes, "echo ../evil > .git/commondir"),
    probe("write the hooks of a submodule", Mounts, Yes, "echo x > .git/modules/part/hooks/pre-commit"),
    probe("write the configuration of a submodule", Mounts, Yes, "echo x >> .git/modules/part/config"),
    probe(
        "write a hook of a nested repository",
        Mounts,
        Yes,
        "mkdir -p deep/nested/.git/hooks; echo x > deep/nested/.git/hooks/pre-commit",
    ),
    probe(
        "replace a folder with a nested repository",
        Mounts,
        Yes,
        "mv deep gone && mkdir -p deep/nested/.git && echo x > deep/nested/.git/config",
    ),
    probe(
        "write a hook where core.hooksPath says",
        Mounts,
        Yes,
        "mkdir -p .husky; echo x > .husky/pre-commit",
    ),
    probe("create our configuration", Mounts, Yes, "echo 'model: x' > greenroom.yaml"),
    probe("link our configuration", Mounts, Yes, "ln -s a.txt greenroom.yaml"),
    probe("move our configuration in", Mounts, Yes, "echo x > y; mv -f y greenroom.yaml; rm -f y"),
    // Processes.
    probe("end a process", Always, Yes, "kill -9 $VICTIM"),
    probe(
        "end a process by its descriptor",
        Always,
        Yes,
        "python3 -c 'import os,signal; signal.pidfd_send_signal(os.pidfd_open(int(os.environ[\"VICTIM\"])),9)'",
    ),
    probe("stop a process", Always, Yes, "kill -STOP $VICTIM"),
    probe(
        "read the environment of a process",
        Always,
        Yes,
        "cat /proc/$VICTIM/environ /proc/[0-9]*/environ | tr '\\0' '\\n'",
    ),
    probe(
        "read the environment of this program",
        Always,
        Yes,
        "grep -qz ^PATH= /proc/$OWNER/environ && echo ESCAPED",
    ),
    probe(
        "read the memory of a process",
        Always,
        Yes,
        "python3 -c \"open('/proc/$VICTIM/mem','rb',0) and print('ESCAPED')\"",
    ),
    probe("read a command line", Mounts, Yes, "cat /proc/$VICTIM/cmdline | tr '\\0' ' '"),
    probe(
        "enter the namespaces of a process",
        Always,
        AsRoot,
        "nsenter -t $VICTIM -a echo ESCAPED; nsenter -t 1 -m -p cat $STORE/token",
    ),
    probe(
        "trace a process",
        Always,
        Yes,
        "python3 -c 'import ctypes,os; l=ctypes.CDLL(None); print(\"ESCAPED\" if l.ptrace(16,int(os.environ[\"VICTIM\"]),0,0)==0 else \"no\"); l.ptrace(17,int(os.environ[\"VICTIM\"]),0,0)'",
    ),
    probe("lower the priority of a process", Mounts, Yes, "renice -n 19 -p $VICTIM && echo ESCAPED"),
    // Network.
    probe("connect to a local port", Sandbox, Yes, "exec 3<>/dev/tcp/127.0.0.1/$PORT && echo hello >&3"),
    probe(
        "connect to a local port by IPv6",
        Sandbox,
        Yes,
        "python3 -c 'import socket,os; socket.create_connection((\"::ffff:127.0.0.1\",int(os.environ[\"PORT\"])))'",
    ),
    probe("send a datagram", Sandbox, Yes, "echo hello > /dev/udp/127.0.0.1/$UDP_PORT"),
    probe(
        "open a raw socket",
        Sandbox,
        AsRoot,
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET,socket.SOCK_RAW).recv; print(\"ESCAPED\")'",
    ),
    probe(
        "reach a hypervisor",
        Sandbox,
        Perhaps,
        "python3 -c 'import socket; socket.socket(socket.AF_VSOCK,socket.SOCK_STREAM); print(\"ESCAPED\")'",
    ),
    probe(
        "open a socket by a ring",
        Sandbox,
        Perhaps,
        "python3 -c 'import ctypes; l=ctypes.CDLL(None,use_errno=True); b=ctypes.create_string_buffer(120); r=l.syscall(425,8,b); print(\"ESCAPED\" if r>=0 else \"no\")'",
    ),
    // Terminals.
    probe("write to a terminal", Always, Yes, "printf '\\033]0;owned\\007' > $TERMINAL"),
    probe("read from a terminal", Always, Yes, "exec 3< $TERMINAL && echo ESCAPED"),
    probe(
        "type into a terminal",
        Always,
        Perhaps,
        "python3 -c 'import fcntl,os; fcntl.ioctl(os.open(os.environ[\"TERMINAL\"],os.O_RDWR),0x5412,b\"x\"); print(\"ESCAPED\")'",
    ),
    probe(
        "type into the own terminal",
        Always,
        Perhaps,
        "python3 -c 'import fcntl,os; fcntl.ioctl(os.open(\"/dev/tty\",os.O_RDWR),0x5412,b\"x\"); print(\"ESCAPED\")'",
    ),
    probe(
        "type with a terminal of its own",
        Always,
        Perhaps,
        "script -qec \"python3 -c 'import fcntl; fcntl.ioctl(0,0x5412,b\\\"x\\\"); print(\\\"ESC\\\"+\\\"APED\\\")'\" /dev/null",
    ),
    // Keys and privileges.
    probe(
        "read the user's keys",
        Sandbox,
        Perhaps,
        "python3 -c 'import ctypes; l=ctypes.CDLL(None); print(\"ESCAPED\" if l.syscall(250,0,-3,1)>=0 else \"no\")'",
    ),
    probe(
        "gain privileges",
        Always,
        Perhaps,
        "sudo -n true && echo ESCAPED; su -c 'echo ESCAPED' nobody < /dev/null > /dev/null && false",
    ),
    probe(
        "leave a program with the rights of its owner",
        Sandbox,
        Yes,
        "cp /bin/true $WS/p; chmod 4755 $WS/p; [ -u $WS/p ] && echo ESCAPED; rm -f $WS/p",
    ),
    probe(
        "leave a program with the rights of its owner by other calls",
        Sandbox,
        Perhaps,
        "python3 - <<'E'\nimport ctypes,os\nl=ctypes.CDLL(None); p=os.environ['WS'].encode()+b'/p'; how=(ctypes.c_uint64*3)(0o101,0o4755,0)\ndef tried(make):\n    try: make()\n    except OSError: pass\n    if os.path.exists(p):\n        if os.stat(p).st_mode & 0o4000: print('ESCAPED')\n        os.remove(p)\nclosed=lambda flags: os.close(os.open(p,flags,0o4755))\ndef temporary():\n    f=os.open(os.environ['WS'],os.O_TMPFILE|os.O_RDWR,0o4755); os.link('/proc/self/fd/%d'%f,p)\ndef changed(change):\n    closed_=os.open(p,os.O_CREAT|os.O_RDWR,0o755); change(closed_)\nfor make in (lambda: closed(os.O_CREAT|os.O_RDWR), temporary, lambda: os.mknod(p,0o104755), lambda: changed(lambda f: os.fchmod(f,0o4755)), lambda: changed(lambda f: l.syscall(452,-100,p,0o4755,0)), lambda: changed(lambda f: l.syscall(90,p,0o4755)), lambda: l.syscall(85,p,0o4755), lambda: l.syscall(2,p,0o101,0o4755), lambda: l.syscall(437,-100,p,how,24), lambda: l.syscall(0x4000005a,p,0o4755)): tried(make)\nE",
    ),
    probe(
        "load a module",
        Always,
        Perhaps,
        "insmod /nothing.ko 2>&1 | grep -q 'No such file' && grep -q '^CapEff:.*1ffffffffff' /proc/self/status && echo ESCAPED",
    ),
    probe(
        "outlive the command",
        Always,
        Perhaps,
        "setsid sh -c \"trap '' TERM HUP INT; sleep 997.$MARK\" > /dev/null 2>&1 & disown; setsid nohup sleep 998.$MARK > /dev/null 2>&1 &",
    ),
    // A second list, after the first was mended.
    probe("read the token by the root of the own process", Always, Yes, "cat /proc/self/root$STORE/token"),
    probe("read the token by an open file", Always, Yes, "exec 9< $STORE/token; cat <&9"),
    probe("read the token from a folder that is entered", Always, Yes, "cd $STORE && cat token"),
    probe("list the store", Mounts, Yes, "ls $STORE | grep -q token && echo ESCAPED"),
    probe("link out of the workspace", Sandbox, Yes, "ln a.txt $OUTSIDE/hard"),
    probe("move a folder out of the workspace", Sandbox, Yes, "mkdir out; mv out $OUTSIDE/out; rmdir out"),
    probe("rename the workspace", Sandbox, Yes, "mv $WS $BASE/other && mv $BASE/other $WS && echo ESCAPED"),
    probe("remove from a folder that is entered", Sandbox, Yes, "cd $OUTSIDE && rm -f file.txt"),
    probe(
        "mark a file outside",
        Mounts,
        Perhaps,
        "python3 -c 'import os; os.setxattr(os.environ[\"OUTSIDE\"]+\"/file.txt\",\"user.x\",b\"x\"); print(\"ESCAPED\")'",
    ),
    probe("give a file outside away", Mounts, AsRoot, "chown 1 $OUTSIDE/file.txt && echo ESCAPED"),
    probe(
        "mount over the store",
        Always,
        Perhaps,
        "unshare -Urm sh -c 'mkdir -p $WS/m; mount -t overlay o -o lowerdir=$STORE:$WS/sub $WS/m; cat $WS/m/token'; rmdir $WS/m",
    ),
    probe(
        "clone the mount below the store's cover",
        Always,
        Perhaps,
        "python3 -c 'import ctypes,os; l=ctypes.CDLL(None); f=l.syscall(428,-100,os.environ[\"BASE\"].encode(),1|0o2000000); print(open(\"/proc/self/fd/%d/store/token\"%f).read())'",
    ),
    probe(
        "write a hook by the folder of the own process",
        Mounts,
        Yes,
        "echo x > /proc/self/cwd/.git/hooks/pre-commit",
    ),
    probe("write a hook by a hard link", Mounts, Yes, "ln .git/hooks/pre-commit h && echo evil > h; rm -f h"),
    probe(
        "replace the folder that core.hooksPath names",
        Mounts,
        Yes,
        "mv .husky gone && mkdir .husky && echo x > .husky/pre-commit",
    ),
    probe("write a hook of a bare repository", Mounts, Yes, "echo x > bare/hooks/post-update"),
    probe(
        "write the configuration of a bare repository",
        Mounts,
        Yes,
        "echo '[core] fsmonitor = x' >> bare/config",
    ),
    probe(
        "replace a bare repository",
        Mounts,
        Yes,
        "mv bare gone && mkdir -p bare/hooks && echo x > bare/hooks/post-update",
    ),
    probe(
        "look at the memory of a process",
        Always,
        Yes,
        "head -1 /proc/$VICTIM/maps | grep -q - && echo ESCAPED",
    ),
    probe(
        "have a process ended first",
        Always,
        Yes,
        "echo 1000 > /proc/$VICTIM/oom_score_adj && echo ESCAPED",
    ),
    probe("limit a process", Mounts, Yes, "prlimit --pid $VICTIM --core=0:0 && echo ESCAPED"),
    probe("move a process to a processor", Mounts, Yes, "taskset -p 1 $VICTIM && echo ESCAPED"),
    probe(
        "have the system signal a process",
        Always,
        Yes,
        "python3 -c 'import fcntl,os,socket; a,b=socket.socketpair(); fcntl.fcntl(a,8,int(os.environ[\"VICTIM\"])); fcntl.fcntl(a,10,9); fcntl.fcntl(a,4,os.O_NONBLOCK|0o20000); b.send(b\"x\")'",
    ),
    probe(
        "name the machine",
        Always,
        AsRoot,
        "python3 -c 'import socket; socket.sethostname(socket.gethostname()); print(\"ESCAPED\")'",
    ),
    probe(
        "use the kernel's ciphers",
        Sandbox,
        Perhaps,
        "python3 -c 'import socket; socket.socket(38,5,0); print(\"ESCAPED\")'",
    ),
    probe(
        "make calls of another architecture",
        Always,
        Perhaps,
        "[ $(uname -m) = x86_64 ] && python3 -c 'import mmap,ctypes; m=mmap.mmap(-1,4096,prot=7); m.write(b\"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3\"); f=ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m))); print(\"ESCAPED\" if f()>0 else \"no\")'",
    ),
    probe(
        "see an open file of this program",
        Always,
        Perhaps,
        "ls -l /proc/self/fd | grep -v -E 'null|pipe|total|/proc/' && cat /proc/self/fd/[3-9]",
    ),
];

//! The steps of the helper before it becomes a command: mounts, limits, Landlock, seccomp.
//!
//! Invariants: a confinement travels as one argument of the helper. If a part of it cannot be applied, the command
//! does not start.

use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Limits;
use super::plan::Mount;

/// What a command is confined to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confinement {
    /// Mounts in the command's own namespace. Empty with bubblewrap, which makes them itself.
    pub(crate) mounts: Vec<Mount>,
    /// `None`: Landlock restricts no files.
    pub(crate) landlock: Option<Rules>,
    /// Whether system calls are filtered for a sandbox.
    pub(crate) has_filter: bool,
    /// Whether internet sockets can be created. Without it there may still be none to reach.
    pub(crate) has_internet: bool,
    /// Whether sockets between processes can be created.
    pub(crate) has_sockets: bool,
    /// Whether sockets of all other families can be created.
    pub(crate) has_all_families: bool,
    /// Whether the network namespace is new, and its loopback interface must be started.
    pub(crate) has_own_loopback: bool,
    pub(crate) limits: Limits,
    /// Where the proxy is.
    pub(crate) forward: Option<Forward>,
}

/// The rules of Landlock: whatever they do not allow is forbidden.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// What can be read and executed.
    pub(crate) read: Vec<PathBuf>,
    /// What can also be changed.
    pub(crate) write: Vec<PathBuf>,
    /// Devices that can be used.
    pub(crate) devices: Vec<PathBuf>,
    /// Folders whose names can be listed, and those in them.
    pub(crate) list: Vec<PathBuf>,
}

/// Connections to the proxy of a sandbox without network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forward {
    /// The proxy's socket.
    pub(crate) socket: PathBuf,
    /// The port on 127.0.0.1 in the sandbox.
    pub(crate) port: u16,
}

impl Confinement {
    /// Returns the helper's argument.
    pub(crate) fn to_argument(&self) -> Result<OsString> {
        let text = serde_json::to_string(self);
        let text = text.map_err(|_| {
            Error::new(
                ErrorKind::InvalidInput,
                "a path to protect is not UTF-8; rename it, or turn the sandbox off",
            )
        })?;
        Ok(text.into())
    }

    /// Reads the helper's argument.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_argument(argument: &OsString) -> Result<Self> {
        let text = argument.to_str().ok_or(ErrorKind::InvalidInput)?;
        serde_json::from_str(text).map_err(Error::other)
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{filters, mount_all, restrict_files, set_limits};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::{BTreeMap, HashMap};
    use std::fs::File;
    use std::io::{Error, ErrorKind, Result};
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};

    use landlock::{
        ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
        RulesetCreatedAttr, Scope,
    };
    use nix::libc;
    use rustix::fs::{CWD, Mode, OFlags};
    use rustix::mount::{
        MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount,
    };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch,
    };

    use super::{Confinement, Rules};
    use crate::sandbox::Limits;
    use crate::sandbox::plan::Mount;

    fn at(path: &Path) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |error| {
            let error = Error::from(error);
            Error::new(error.kind(), format!("cannot protect {}: {error}", path.display()))
        }
    }

    /// Makes mounts in the namespace of this process, which must be new.
    pub(crate) fn mount_all(mounts: &[Mount]) -> Result<()> {
        if mounts.is_empty() {
            return Ok(());
        }
        // What is mounted here is seen nowhere else.
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
        let here = std::env::current_dir()?;
        // Sources are opened before anything covers them.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let mut sources: HashMap<PathBuf, File> = HashMap::new();
        for path in mounts.iter().filter_map(source) {
            let opened = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(at(path))?;
            sources.insert(path.to_owned(), File::from(opened));
        }
        if mounts.contains(&Mount::Root) {
            root_read_only(mounts)?;
        }
        for place in mounts {
            mount_one(place, &sources)?;
        }
        for place in mounts {
            if let Mount::Empty(path) = place {
                let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
                mount_remount(path, flags, "").map_err(at(path))?;
            }
        }
        // The folder of this process is still the one below the mounts.
        Ok(rustix::process::chdir(here)?)
    }

    /// Makes all file systems read-only, except those in writable folders.
    fn root_read_only(mounts: &[Mount]) -> Result<()> {
        let writable: Vec<&Path> = mounts
            .iter()
            .filter_map(|mount| match mount {
                Mount::Writable(path) => Some(&**path),
                Mount::Replaced { folder, .. } => Some(&**folder),
                Mount::Root | Mount::ReadOnly(_) | Mount::Empty(_) | Mount::Blank(_) | Mount::Devices => None,
            })
            .collect();
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        for line in table.lines() {
            let Some(path) = line.split(' ').nth(4).map(unescaped) else { continue };
            if path != Path::new("/") && writable.iter().any(|folder| path.starts_with(folder)) {
                continue;
            }
            match read_only(&path, false) {
                Ok(()) => {}
                // One that is covered by another, or that this user cannot enter: nor can the command.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::InvalidInput
                    ) && path != Path::new("/") => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns a path of the table of mounts, where some characters are octal numbers.
    fn unescaped(path: &str) -> PathBuf {
        let replaced = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        PathBuf::from(replaced.iter().fold(path.to_owned(), |path, (code, text)| path.replace(code, text)))
    }

    fn source(mount: &Mount) -> Option<&Path> {
        match mount {
            Mount::Replaced { folder, .. } => Some(folder),
            Mount::Writable(path) | Mount::ReadOnly(path) => Some(path),
            Mount::Blank(_) => Some(Path::new("/dev/null")),
            Mount::Root | Mount::Empty(_) | Mount::Devices => None,
        }
    }

    fn mount_one(place: &Mount, sources: &HashMap<PathBuf, File>) -> Result<()> {
        let bind = |source: &Path, path: &Path| {
            let file = sources.get(source).ok_or(ErrorKind::NotFound)?;
            if file.metadata()?.is_dir() {
                std::fs::create_dir_all(path)?;
            } else if !path.exists() {
                std::fs::create_dir_all(path.parent().ok_or(ErrorKind::InvalidInput)?)?;
                File::create(path)?;
            }
            mount_bind_recursive(format!("/proc/self/fd/{}", file.as_raw_fd()), path).map_err(at(path))
        };
        match place {
            // It was done first.
            Mount::Root => Ok(()),
            Mount::Replaced { folder, at } => {
                bind(folder, at)?;
                writable(at)
            }
            Mount::Writable(path) => {
                bind(path, path)?;
                writable(path)
            }
            Mount::ReadOnly(path) => {
                bind(path, path)?;
                read_only(path, false)
            }
            Mount::Blank(path) => match blank(path, sources) {
                // The socket of a program that has ended, possibly since the mounts were planned.
                Err(error) if error.kind() == ErrorKind::NotFound && !path.exists() => Ok(()),
                made => made,
            },
            Mount::Empty(path) => {
                std::fs::create_dir_all(path)?;
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                mount("tmpfs", path, "tmpfs", flags, c"mode=0755").map_err(at(path))
            }
            Mount::Devices => devices(),
        }
    }

    /// Mounts the null device over a file. Never creates the file: the path can belong to another program's socket.
    fn blank(path: &Path, sources: &HashMap<PathBuf, File>) -> Result<()> {
        let null = sources.get(Path::new("/dev/null")).ok_or(ErrorKind::InvalidInput)?;
        mount_bind_recursive(format!("/proc/self/fd/{}", null.as_raw_fd()), path).map_err(at(path))?;
        read_only(path, true)
    }

    fn read_only(path: &Path, is_device: bool) -> Result<()> {
        let device = if is_device { MountFlags::NODEV } else { MountFlags::empty() };
        mount_remount(path, kept_flags(path)? | MountFlags::RDONLY | device, "").map_err(at(path))
    }

    /// A mount of a folder in a file system that was made read-only above is so too.
    fn writable(path: &Path) -> Result<()> {
        match mount_remount(path, kept_flags(path)?, "") {
            // It was read-only before: then it stays so.
            Ok(()) | Err(rustix::io::Errno::PERM | rustix::io::Errno::ROFS) => Ok(()),
            Err(error) => Err(at(path)(error)),
        }
    }

    /// A mount keeps the flags that it must not lose, which are those of the file system below it.
    fn kept_flags(path: &Path) -> Result<MountFlags> {
        let statistics = rustix::fs::statvfs(path).map_err(at(path))?;
        let mut flags = MountFlags::BIND;
        let kept = [
            (rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
            (rustix::fs::StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
            (rustix::fs::StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        ];
        for (known, flag) in kept {
            if statistics.f_flag.contains(known) {
                flags |= flag;
            }
        }
        Ok(flags)
    }

    /// Terminals and shared memory of its own.
    fn devices() -> Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let shared = Path::new("/dev/shm");
        if shared.is_dir() {
            mount("tmpfs", shared, "tmpfs", flags, c"mode=1777").map_err(at(shared))?;
        }
        let terminals = Path::new("/dev/pts");
        if terminals.is_dir() {
            let data = c"newinstance,ptmxmode=0666,mode=0620";
            mount("devpts", terminals, "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, data)
                .map_err(at(terminals))?;
            let master = Path::new("/dev/ptmx");
            if master.exists() && !master.is_symlink() {
                mount_bind_recursive("/dev/pts/ptmx", master).map_err(at(master))?;
            }
        }
        // The terminal that this process was started at.
        let console = Path::new("/dev/console");
        if console.exists() {
            mount_bind_recursive("/dev/null", console).map_err(at(console))?;
        }
        Ok(())
    }

    /// Sets limits; a limit is never raised. `counts_processes`: whether processes of the command alone are
    /// counted.
    pub(crate) fn set_limits(limits: &Limits, counts_processes: bool) -> Result<()> {
        let processes = counts_processes.then_some(limits.processes_max);
        for (resource, most) in [
            (Resource::Nproc, processes),
            (Resource::Fsize, limits.file_bytes_max),
            (Resource::Data, limits.memory_bytes_max),
            (Resource::Nofile, limits.files_max),
            (Resource::Cpu, limits.cpu_s_max),
            // A core file has the memory of a process.
            (Resource::Core, Some(0)),
        ] {
            let Some(most) = most else { continue };
            let now = getrlimit(resource);
            let least = |known: Option<u64>| Some(known.map_or(most, |known| known.min(most)));
            setrlimit(resource, Rlimit { current: least(now.current), maximum: least(now.maximum) })?;
        }
        Ok(())
    }

    /// Applies Landlock to this process and all that it starts.
    pub(crate) fn restrict_files(confinement: &Confinement) -> Result<()> {
        if !confinement.has_filter {
            return Ok(());
        }
        let refused = |error: landlock::RulesetError| Error::other(format!("Landlock: {error}"));
        let abi = ABI::V6;
        // Signals, and sockets without a file, where the kernel can keep them apart.
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let ruleset = ruleset.scope(Scope::from_all(abi)).map_err(refused)?;
        let Some(rules) = &confinement.landlock else {
            let created = ruleset.create().map_err(refused)?;
            created.restrict_self().map_err(refused)?;
            return Ok(());
        };
        let ruleset = ruleset.handle_access(AccessFs::from_all(abi)).map_err(refused)?;
        let mut created = ruleset.create().map_err(refused)?;
        let Rules { read, write, devices, list } = rules;
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
        for (paths, access) in [
            (read, AccessFs::from_read(abi)),
            (write, AccessFs::from_all(abi)),
            (devices, device),
            (list, AccessFs::ReadDir.into()),
        ] {
            for path in paths {
                // What is gone needs no permission.
                let Ok(opened) = PathFd::new(path) else { continue };
                // A file has no rights of folders.
                let access = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
                created = created.add_rule(PathBeneath::new(opened, access)).map_err(refused)?;
            }
        }
        let status = created.restrict_self().map_err(refused)?;
        if let landlock::RulesetStatus::NotEnforced = status.ruleset {
            return Err(Error::new(ErrorKind::Unsupported, "the kernel does not enforce Landlock"));
        }
        Ok(())
    }

    /// System calls that a sandbox does not need, and that reach past it: rings perform other calls without the
    /// filter, keys belong to the user's session.
    const REFUSED: [i64; 6] = [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
    ];

    /// The calls that set the permissions of a file, with the place of these among the arguments, and of the flags if
    /// they say whether a file is created at all.
    const SETTING_MODES: &[(i64, u8, Option<u8>)] = &[
        (libc::SYS_fchmod, 1, None),
        (libc::SYS_fchmodat, 2, None),
        (FCHMODAT2, 2, None),
        (libc::SYS_mknodat, 2, None),
        (libc::SYS_openat, 3, Some(2)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_chmod, 1, None),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mknod, 1, None),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_creat, 1, None),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, 2, Some(1)),
    ];
    /// The same number on all architectures.
    const FCHMODAT2: i64 = 452;
    /// The permission with which a program has the rights of its owner, whoever starts it.
    const SETUID: u64 = 0o4000;
    /// Of the flags for a file without a name, the bit that no other flag has.
    const TEMPORARY: u64 = 0o20_000_000;

    /// What seccompiler objects to, as an error of a system call.
    trait OrWrong<T> {
        fn or_wrong(self) -> Result<T>;
    }

    impl<T> OrWrong<T> for std::result::Result<T, seccompiler::BackendError> {
        fn or_wrong(self) -> Result<T> {
            self.map_err(|error| Error::other(format!("seccomp: {error}")))
        }
    }

    /// Returns the filters of system calls: what is refused fails with `EPERM`, and `openat2`, whose arguments a
    /// filter does not see, as on systems that do not have it.
    pub(crate) fn filters(confinement: &Confinement) -> Result<Vec<BpfProgram>> {
        let mut filters = vec![program(refused(confinement)?, libc::EPERM)?];
        if confinement.has_filter {
            filters.push(program(BTreeMap::from([(libc::SYS_openat2, Vec::new())]), libc::ENOSYS)?);
        }
        Ok(filters)
    }

    /// Returns the rules by which no file gets the permission [`SETUID`]. Folders need the one for groups, which is
    /// therefore not refused.
    fn no_setuid() -> Result<BTreeMap<i64, Vec<SeccompRule>>> {
        let has = |argument: u8, bit: u64| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bit), bit)
                .or_wrong()
        };
        let creates = [u64::from(libc::O_CREAT.unsigned_abs()), TEMPORARY];
        let mut rules = BTreeMap::new();
        for (call, mode, flags) in SETTING_MODES {
            let conditions = match flags {
                None => vec![vec![has(*mode, SETUID)?]],
                Some(flags) => creates
                    .into_iter()
                    .map(|bit| Ok(vec![has(*mode, SETUID)?, has(*flags, bit)?]))
                    .collect::<Result<_>>()?,
            };
            let of_call = conditions.into_iter().map(|all| SeccompRule::new(all).or_wrong());
            rules.insert(*call, of_call.collect::<Result<_>>()?);
        }
        Ok(rules)
    }

    /// Returns the calls that are refused.
    fn refused(confinement: &Confinement) -> Result<BTreeMap<i64, Vec<SeccompRule>>> {
        let equals = |argument: u8, value: u64| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
        };
        let differs = |argument: u8, value: u64| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
        };
        // Typing into a terminal, and commands to a console.
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        let typing = [libc::TIOCSTI, libc::TIOCLINUX].map(|request| {
            let condition = equals(1, request & 0xffff_ffff).or_wrong()?;
            SeccompRule::new(vec![condition]).or_wrong()
        });
        rules.insert(libc::SYS_ioctl, typing.into_iter().collect::<Result<_>>()?);
        if confinement.has_filter {
            rules.extend(REFUSED.map(|call| (call, Vec::new())));
            rules.extend(no_setuid()?);
            if !confinement.has_all_families {
                let mut allowed = vec![libc::AF_NETLINK];
                if confinement.has_sockets {
                    allowed.push(libc::AF_UNIX);
                }
                if confinement.has_internet {
                    allowed.extend([libc::AF_INET, libc::AF_INET6]);
                }
                let conditions = allowed
                    .into_iter()
                    .map(|family| differs(0, u64::try_from(family).map_err(Error::other)?).or_wrong());
                let rule = SeccompRule::new(conditions.collect::<Result<_>>()?).or_wrong()?;
                rules.insert(libc::SYS_socket, vec![rule]);
            }
        }
        Ok(rules)
    }

    fn program(mut rules: BTreeMap<i64, Vec<SeccompRule>>, error: i32) -> Result<BpfProgram> {
        // The same calls of the x32 interface have numbers of their own.
        if cfg!(target_arch = "x86_64") {
            const X32: i64 = 0x4000_0000;
            let again: Vec<_> = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
            rules.extend(again);
        }
        let architecture = TargetArch::try_from(std::env::consts::ARCH).or_wrong()?;
        let refuse = SeccompAction::Errno(error.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture);
        filter.and_then(TryInto::try_into).or_wrong()
    }
}

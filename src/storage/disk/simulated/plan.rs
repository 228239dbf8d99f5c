//! What is to go wrong, and when.

use std::io;

/// What survives when the machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies; the operating system lives on and keeps what it took.
    Process,
    /// Everything stops; only the medium keeps what it holds.
    Power,
}

/// A kind of operation, as counted by a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Open,
    Read,
    Write,
    Sync,
    Truncate,
    Allocate,
    Punch,
    List,
    CreateDir,
    Rename,
    Remove,
    SyncDir,
}

impl Operation {
    /// Kinds there are.
    pub(super) const KINDS: usize = 12;

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It returns this errno. A write may have reached the disk in part; of a sync's writes, any
    /// sectors may be durable and the rest never will be.
    Error(i32),
    /// A read or write does about half of what was asked, in whole blocks, and says so; a read
    /// gets at least one. Other operations fail with `EIO`.
    Short,
}

impl Fault {
    pub(super) fn error(self) -> io::Error {
        match self {
            Self::Error(errno) => io::Error::from_raw_os_error(errno),
            Self::Short => io::Error::from_raw_os_error(libc::EIO),
        }
    }
}

/// Faults to come; the default plan has none.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// The machine halts when this many operations have begun.
    pub halt_after: Option<u64>,
    /// The n-th operation of a kind, from 1, meets a fault.
    pub faults: Vec<(Operation, u64, Fault)>,
    /// From the n-th operation of a kind on, all meet a fault.
    pub lasting: Vec<(Operation, u64, Fault)>,
    /// Most turns an operation takes.
    pub delay_turns_max: u64,
}

impl FaultPlan {
    /// Halts when `operations` have begun.
    pub fn halt_after(operations: u64) -> Self {
        Self {
            halt_after: Some(operations),
            delay_turns_max: 3,
            ..Self::default()
        }
    }

    /// The `nth` operation of a kind, from 1, meets `fault`.
    pub fn fault(operation: Operation, nth: u64, fault: Fault) -> Self {
        Self {
            faults: vec![(operation, nth, fault)],
            ..Self::default()
        }
    }

    pub(super) fn fault_for(&self, operation: Operation, nth: u64) -> Option<Fault> {
        let once = self
            .faults
            .iter()
            .find(|(kind, at, _)| (*kind, *at) == (operation, nth));
        let lasting = || {
            self.lasting
                .iter()
                .find(|(kind, from, _)| *kind == operation && nth >= *from)
        };
        once.or_else(lasting).map(|(_, _, fault)| *fault)
    }
}

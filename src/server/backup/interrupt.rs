//! SIGINT and SIGTERM while a directory is being made: what was made so far is
//! removed first. A second signal ends the process at once.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag, low_level,
};

use super::BackupError;

/// Which signal has come, if one has.
#[derive(Clone, Debug)]
pub(super) struct Interrupts(Arc<AtomicUsize>);

impl Interrupts {
    /// From now on the signals do not end the process. Only for when there is something to remove,
    /// and nothing that waits for ever.
    pub(super) fn catch() -> io::Result<Self> {
        let came = Arc::new(AtomicUsize::new(0));
        let once = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, once.clone())?;
            flag::register(signal, once.clone())?;
            let number = usize::try_from(signal).unwrap_or_default();
            flag::register_usize(signal, came.clone(), number)?;
        }
        Ok(Self(came))
    }

    /// Whether to go on.
    pub(super) fn check(&self) -> Result<(), BackupError> {
        match self.0.load(Ordering::SeqCst) {
            0 => Ok(()),
            number => Err(BackupError::Interrupted {
                signal: i32::try_from(number).unwrap_or_default(),
            }),
        }
    }
}

/// Ends the process as `signal` would have, so that whoever waits for it sees that.
pub(super) fn end_by(signal: i32) {
    // What it returns from is a signal that does not end a process.
    let _ = low_level::emulate_default_handler(signal);
}

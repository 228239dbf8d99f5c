//! From what was typed to a finished run: create, fill, measure, read back, judge.
//!
//! Nothing is judged here (`judge`) and nothing measured (`phase`, `engine`); this is the order of things.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::sched_getaffinity;

use crate::args::{RunArgs, Workload};
use crate::client::{Client, Clock, Evidence};
use crate::error::{ErrorKind, Errors};
use crate::histogram::Op;
use crate::judge::{Facts, judge};
use crate::machine::{self, CpuSampler, Machine};
use crate::pace::{Pace, Timing};
use crate::phase::{self, PhaseOptions, PhaseResult};
use crate::record::{self, INDENT_BYTES, MESSAGE_BYTES_MIN};
use crate::report::{self, Parameters, Report, Server, Verification, json, progress::Progress};
use crate::server_latency;
use crate::slot::SlotPlan;
use crate::target::Target;
use crate::verify::{self, Ledger};
use crate::workload::{self, Role, World, create::Create, read::CatchUp};

/// Connections that set up and read back.
const SETUP_CONNECTIONS_MAX: u32 = 64;
const FOREVER: u64 = u64::MAX;

/// Why a run could not be run.
#[derive(Debug)]
pub enum RunError {
    /// What was typed makes no sense.
    Usage(String),
    /// The machine refused.
    Io(io::Error),
}

impl std::fmt::Display for RunError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunError::Usage(text) => out.write_str(text),
            RunError::Io(error) => write!(out, "{error}"),
        }
    }
}

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> RunError {
        RunError::Io(error)
    }
}

/// Checks that somebody listens, for a person who may have forgotten to start the server.
///
/// # Errors
/// What to do about it.
pub fn check_reachable(args: &RunArgs) -> Result<(), String> {
    let target = Target::new(&args.url, args.target, args.raw_post.clone(), "0")?;
    match TcpStream::connect_timeout(&target.address, args.timeout) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "nobody answers at {}: {error}; start the server, or say with --url where it is",
            args.url
        )),
    }
}

/// Runs one workload.
pub fn run(workload: &Workload, args: &RunArgs) -> Result<Report, RunError> {
    Run::new(workload, args)?.go()
}

struct Run<'a> {
    workload: &'a Workload,
    args: &'a RunArgs,
    connections: u32,
    world: Arc<World>,
    options: PhaseOptions,
    started: SystemTime,
    errors: Errors,
    evidence: Evidence,
    verified: u64,
    invalid: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, args: &'a RunArgs) -> Result<Run<'a>, RunError> {
        let started = SystemTime::now();
        let since_1970 = started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = args
            .seed
            .unwrap_or_else(|| record::mix(since_1970.as_nanos() as u64));
        let run = format!("{:08x}", record::mix(since_1970.as_nanos() as u64) as u32);
        let target = Target::new(&args.url, args.target, args.raw_post.clone(), &run)
            .map_err(RunError::Usage)?;
        let defaults = workload::defaults(workload);
        let streams = args.streams.unwrap_or(defaults.streams);
        if args.raw_post.is_some() && !matches!(workload, Workload::Append(_)) {
            return Err(RunError::Usage(
                "--raw-post goes with append only: a bare server has nothing to read".into(),
            ));
        }
        if defaults.snapshots && !target.has_snapshots() {
            let name = workload.name();
            return Err(RunError::Usage(format!(
                "{name} needs --target thalweg-bucket or ursula"
            )));
        }
        let is_indented = args.form.is_indented();
        let indent = if is_indented { INDENT_BYTES } else { 0 };
        let payload_bytes = args.payload.saturating_sub(indent as u32);
        if (payload_bytes as usize) < MESSAGE_BYTES_MIN {
            return Err(RunError::Usage(format!(
                "--type json-indented needs a --payload of {} bytes",
                MESSAGE_BYTES_MIN + INDENT_BYTES
            )));
        }
        check_cpus(&args.cpus)?;
        allow_many_connections();
        let clock = Clock::start();
        let interval =
            (args.duration / 60).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let nanoseconds = |duration: Duration| duration.as_nanos() as u64;
        let options = PhaseOptions {
            address: target.address,
            clock,
            timing: Timing {
                warmup: nanoseconds(args.warmup),
                duration: nanoseconds(args.duration),
                drain: nanoseconds(args.drain),
                interval: nanoseconds(interval),
            },
            threads: usize::from(args.threads),
            cpus: args.cpus.clone(),
            churn: args.churn,
            timeout_ns: nanoseconds(args.timeout),
        };
        let world = Arc::new(World {
            target,
            form: args.form.into(),
            payload_bytes,
            is_indented,
            seed,
            filler: record::filler(seed, args.payload as usize),
            ledger: Ledger::new(streams),
            streams,
            clock,
            check_content: !args.no_verify,
        });
        Ok(Run {
            workload,
            args,
            connections: args.connections.unwrap_or(defaults.connections),
            world,
            options,
            started,
            errors: Errors::default(),
            evidence: Evidence::default(),
            verified: 0,
            invalid: Vec::new(),
        })
    }

    fn go(mut self) -> Result<Report, RunError> {
        if self.world.target.raw_post.is_none() {
            let share = self.setup_shares();
            let world = &self.world;
            let clients = share
                .into_iter()
                .map(|streams| boxed(Create::new(world.clone(), streams)))
                .collect();
            self.set_up("create", clients)?;
        }
        for (name, clients) in workload::preparation(self.workload, self.args, &self.world) {
            self.set_up(name, clients)?;
        }
        let mut sampler = CpuSampler::new(self.args.server_pid);
        let watch = self.args.server_latency.as_deref();
        let mut watch = watch
            .map(server_latency::Watch::new)
            .transpose()
            .map_err(RunError::Usage)?;
        let roles = workload::roles(self.workload, self.args, self.connections, &self.world);
        let followers = roles.iter().filter(|role| role.client.follows()).count() as u32;
        let measured = self.measure(roles, &mut sampler, watch.as_mut())?;
        let read_back = self.read_back()?;
        let mut report = self.conclude(measured, followers, read_back, &sampler);
        match watch.map(server_latency::Watch::finish) {
            Some(Ok(profile)) => report.server_latency = Some(profile),
            Some(Err(why)) => {
                let warning = format!("there is no latency profile of the server: {why}");
                report.warnings.push(warning);
            }
            None => {}
        }
        Ok(report)
    }

    /// Streams, spread over the connections that set up.
    fn setup_shares(&self) -> Vec<Vec<u32>> {
        workload::shares(self.world.streams, SETUP_CONNECTIONS_MAX)
    }

    fn set_up(&mut self, name: &str, clients: Vec<Box<dyn Client>>) -> Result<(), RunError> {
        let slots = clients
            .into_iter()
            .map(|client| SlotPlan {
                client,
                pace: Pace::Closed,
            })
            .collect();
        let progress = Progress::waiting(self.args.quiet, name);
        let result = self.unmeasured(slots)?;
        drop(progress);
        if result.errors.total() > 0 {
            self.invalid
                .push(format!("{name}: {}", result.errors.describe()));
        }
        self.keep(result);
        Ok(())
    }

    fn unmeasured(&self, slots: Vec<SlotPlan>) -> io::Result<PhaseResult> {
        let timing = Timing {
            warmup: 0,
            duration: FOREVER,
            drain: 0,
            interval: FOREVER,
        };
        let options = PhaseOptions {
            timing,
            churn: 0,
            ..self.options.clone()
        };
        phase::run(&options, slots, |_, _| ())
    }

    fn measure(
        &mut self,
        roles: Vec<Role>,
        sampler: &mut CpuSampler,
        mut watch: Option<&mut server_latency::Watch>,
    ) -> Result<PhaseResult, RunError> {
        let args = self.args;
        let interval = Duration::from_nanos(self.options.timing.interval);
        let length = args.warmup + args.duration;
        let threads = self.options.threads;
        let mut progress =
            Progress::new(args.quiet, self.workload.name(), length, interval, threads);
        let clock = self.world.clock;
        let timing = self.options.timing;
        self.started = SystemTime::now();
        let slots = paced(roles, args.rate);
        let result = phase::run(&self.options, slots, |sample, start| {
            let now = clock.now();
            if let Some(start) = start {
                let window = timing.window(start);
                sampler.look(now, window.measured, window.end);
                if let Some(watch) = &mut watch {
                    watch.look(now, window.measured, window.end);
                }
            }
            progress.update(
                sample,
                start.map(|start| Duration::from_nanos(now.saturating_sub(start))),
            );
        })?;
        progress.finish();
        Ok(result)
    }

    fn read_back(&mut self) -> Result<bool, RunError> {
        let wanted = workload::defaults(self.workload).read_back && !self.args.no_verify;
        if !wanted || self.world.target.raw_post.is_some() {
            return Ok(false);
        }
        let slots = self
            .setup_shares()
            .into_iter()
            .map(|streams| SlotPlan {
                client: boxed(CatchUp::new(self.world.clone(), streams, false)),
                pace: Pace::Closed,
            })
            .collect();
        let progress = Progress::waiting(self.args.quiet, "reading back");
        let result = self.unmeasured(slots)?;
        drop(progress);
        // A fault was found by reading; any other error is something that was not read.
        let is_all = result.errors.total() == result.errors.faults();
        self.keep(result);
        Ok(is_all)
    }

    /// Keeps what a phase says about errors and messages.
    fn keep(&mut self, result: PhaseResult) {
        for (kind, count) in result.errors.iter() {
            self.errors.add(kind, count);
        }
        self.verified += result.verified;
        self.evidence.written.extend(result.evidence.written);
        self.evidence.seen.extend(result.evidence.seen);
    }

    fn conclude(
        mut self,
        mut measured: PhaseResult,
        followers: u32,
        read_back: bool,
        sampler: &CpuSampler,
    ) -> Report {
        let evidence = std::mem::take(&mut measured.evidence);
        self.evidence.written.extend(evidence.written);
        self.evidence.seen.extend(evidence.seen);
        for (kind, count) in measured.errors.iter() {
            self.errors.add(kind, count);
        }
        self.verified += measured.verified;
        if evidence.undelivered > 0 {
            self.errors
                .add(ErrorKind::Undelivered, evidence.undelivered);
        }
        let errors = &mut self.errors;
        verify::reconcile(
            &self.evidence.written,
            &self.evidence.seen,
            |fault, count| {
                errors.add(ErrorKind::Fault(fault), count);
            },
        );

        let args = self.args;
        let measured_s = args.duration.as_secs_f64();
        let interval = Duration::from_nanos(self.options.timing.interval);
        let operations: Vec<report::Operation> = measured
            .collected
            .totals
            .iter()
            .map(|(op, _)| {
                json::operation(*op, &measured.collected, measured_s, interval, self.started)
            })
            .collect();
        let verdict = judge(&self.facts(&measured, evidence.undelivered));
        self.invalid.extend(verdict.invalid);
        let main = operations
            .iter()
            .find(|operation| operation.name == Op::Delivery.name())
            .or(operations.first());
        let main_completed = main.map_or(1, |operation| operation.completed.max(1)) as f64;
        let client_cpu_s = measured.cpu_shares.iter().sum::<f64>() * measured_s;
        let acknowledged = (0..self.world.streams)
            .map(|stream| self.world.ledger.acknowledged(stream))
            .sum();
        Report {
            loadgen: env!("CARGO_PKG_VERSION").to_owned(),
            revision: machine::git_revision(),
            label: args.label.clone(),
            started_unix_s: self
                .started
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
            command: std::env::args().collect(),
            machine: Machine::here(),
            parameters: self.parameters(followers),
            valid: self.invalid.is_empty(),
            measured_s,
            interval_s: interval.as_secs_f64(),
            operations,
            errors: self
                .errors
                .iter()
                .map(|(kind, count)| (kind.name(), count))
                .collect::<BTreeMap<_, _>>(),
            verification: Verification {
                read_back,
                messages_checked: self.verified,
                messages_acknowledged: acknowledged,
                faults: self.errors.faults(),
            },
            client: report::Client {
                cpu_us_per_operation: client_cpu_s * 1e6 / main_completed,
                cpu_share_by_thread: measured.cpu_shares,
                lag_us: json::percentiles(&measured.lag),
                planned: measured.planned,
                unsent: measured.unsent,
            },
            server: sampler.cores().map(|cpu_cores| Server {
                pid: args.server_pid.unwrap_or(0),
                cpu_cores,
                cpu_us_per_operation: cpu_cores * measured_s * 1e6 / main_completed,
            }),
            server_latency: None,
            invalid_because: self.invalid,
            warnings: verdict.warnings,
        }
    }

    fn facts<'r>(&'r self, measured: &'r PhaseResult, undelivered: u64) -> Facts<'r> {
        let completed = |wanted: &dyn Fn(Op) -> bool| -> u64 {
            let totals = measured
                .collected
                .totals
                .iter()
                .filter(|(op, _)| wanted(*op));
            totals.map(|(_, counts)| counts.completed).sum()
        };
        let requests = completed(&|op| !matches!(op, Op::WholeRead | Op::Delivery));
        let only_writers = matches!(
            self.workload,
            Workload::Tail(_) | Workload::LongPoll(_) | Workload::Mixed(_)
        );
        Facts {
            requests,
            paced: if only_writers {
                completed(&|op| op == Op::Append)
            } else {
                requests
            },
            planned: measured.planned,
            errors: &self.errors,
            measured_errors: &measured.errors,
            undelivered,
            lag_us: json::percentiles(&measured.lag).p99,
            cpu_shares: &measured.cpu_shares,
        }
    }

    fn parameters(&self, followers: u32) -> Parameters {
        let args = self.args;
        Parameters {
            workload: self.workload.name().to_owned(),
            url: args.url.clone(),
            target: args
                .raw_post
                .clone()
                .map_or(args.target.name().to_owned(), |path| {
                    format!("raw POST {path}")
                }),
            rate_per_s: args.rate,
            streams: self.world.streams,
            connections: self.connections,
            followers,
            payload_bytes: args.payload,
            content_type: match args.form.is_indented() {
                true => format!("{}, indented", self.world.form.content_type()),
                false => self.world.form.content_type().to_owned(),
            },
            batch: args.batch,
            producers: args.producers,
            threads: self.options.threads,
            cpus: args.cpus.clone(),
            churn: args.churn,
            warmup_s: args.warmup.as_secs_f64(),
            timeout_s: args.timeout.as_secs_f64(),
            messages: args.messages,
            snapshot_bytes: args.snapshot_bytes,
            parts: args.parts,
            content_checked: self.world.check_content,
            seed: self.world.seed,
        }
    }
}

/// Gives the drivers their pace: together `rate` requests per second, evenly staggered, if there is a rate.
fn paced(roles: Vec<Role>, rate: Option<f64>) -> Vec<SlotPlan> {
    let drivers = roles.iter().filter(|role| role.paced).count() as f64;
    let mut index = 0.0;
    roles
        .into_iter()
        .map(|role| {
            let pace = match rate {
                Some(rate) if role.paced => {
                    let interval_ns = drivers * 1e9 / rate;
                    let phase_ns = index / drivers * interval_ns;
                    index += 1.0;
                    Pace::Every {
                        interval_ns,
                        phase_ns,
                    }
                }
                _ => Pace::Closed,
            };
            SlotPlan {
                client: role.client,
                pace,
            }
        })
        .collect()
}

fn check_cpus(cpus: &[usize]) -> Result<(), RunError> {
    let allowed = sched_getaffinity(None).map_err(|error| RunError::Io(error.into()))?;
    match cpus
        .iter()
        .find(|cpu| **cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(**cpu))
    {
        Some(cpu) => Err(RunError::Usage(format!(
            "this process may not use CPU {cpu}"
        ))),
        None => Ok(()),
    }
}

/// Raises the limit on open files as far as it goes; where that is too low, connections fail and are counted.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

fn boxed(client: impl Client + 'static) -> Box<dyn Client> {
    Box::new(client)
}

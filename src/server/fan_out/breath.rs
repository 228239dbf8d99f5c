//! When the turns of a core's crowds are to leave it to others for a moment:
//! once they have taken more than their share of it for longer than a breath.

/// Turns follow one another for so long, in nanoseconds; then a rest is due after each, or
/// after [`SPENT_NS_MIN`] of shorter ones.
const BREATH_NS_MAX: u64 = 6_000_000;
/// Turns cost that many times their length of time without turns: a core that spends less than a
/// quarter of its time on them never rests.
const BREATH_SHARE: u64 = 3;
/// Time spent on turns between two rests, in nanoseconds.
const SPENT_NS_MIN: u64 = 150_000;

/// How long the turns of a core may still follow one another without a rest.
#[derive(Debug, Default)]
pub struct Breath {
    left_ns: u64,
    ended_ns: u64,
    /// Spent on turns since the last rest.
    spent_ns: u64,
}

impl Breath {
    /// A turn has ended; whether it is time for a rest. Time without turns gives breath.
    pub fn is_out(&mut self, began_ns: u64, ended_ns: u64) -> bool {
        let idle_ns = began_ns.saturating_sub(self.ended_ns);
        let turn_ns = ended_ns.saturating_sub(began_ns);
        let gained_ns = idle_ns / BREATH_SHARE;
        let left_ns = self.left_ns.saturating_add(gained_ns).min(BREATH_NS_MAX);
        self.left_ns = left_ns.saturating_sub(turn_ns);
        self.ended_ns = ended_ns;
        self.spent_ns = self.spent_ns.saturating_add(turn_ns);
        let is_out = self.left_ns == 0 && self.spent_ns >= SPENT_NS_MIN;
        if is_out {
            self.spent_ns = 0;
        }
        is_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_due_when_the_breath_is_spent_and_idle_time_restores_it() {
        let mut breath = Breath::default();
        let mut now_ns = 1_000_000_000;
        let mut turns = |count: usize, turn_ns: u64, gap_ns: u64| {
            let turn = |_| {
                let began_ns = now_ns + gap_ns;
                now_ns = began_ns + turn_ns;
                breath.is_out(began_ns, now_ns)
            };
            (0..count).map(turn).filter(|is_out| *is_out).count()
        };
        let turn_ns = 2 * SPENT_NS_MIN;
        let in_a_row = usize::try_from(BREATH_NS_MAX / turn_ns).unwrap();
        assert_eq!(turns(in_a_row - 1, turn_ns, 0), 0);
        assert_eq!(turns(10, turn_ns, 0), 10);
        // A rest does not give enough for a turn.
        assert_eq!(turns(10, turn_ns, 50_000), 10);
        // Short turns rest together.
        assert_eq!(turns(10, SPENT_NS_MIN / 5, 0), 2);
        assert_eq!(turns(1, turn_ns, BREATH_SHARE * BREATH_NS_MAX), 0);
    }
}

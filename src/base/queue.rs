//! A queue that grows in chunks: nothing is copied to make room, so one more
//! entry costs the same however many wait.

use std::collections::VecDeque;

/// Entries of one chunk.
const CHUNK: usize = 512;

/// First in, first out.
#[derive(Debug)]
pub struct Queue<T> {
    /// None is empty.
    chunks: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> Queue<T> {
    /// Entries in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first.
    #[must_use]
    pub fn front(&self) -> Option<&T> {
        self.chunks.front()?.front()
    }

    /// Adds one at the end.
    pub fn push_back(&mut self, entry: T) {
        self.len = self.len.saturating_add(1);
        if let Some(last) = self.chunks.back_mut()
            && last.len() < CHUNK
        {
            last.push_back(entry);
            return;
        }
        self.chunks.push_back(VecDeque::from([entry]));
    }

    /// Takes the first out.
    pub fn pop_front(&mut self) -> Option<T> {
        let first = self.chunks.front_mut()?;
        let entry = first.pop_front();
        if first.is_empty() {
            self.chunks.pop_front();
        }
        self.len = self.len.saturating_sub(1);
        entry
    }

    /// Adds all of another behind these.
    pub fn append(&mut self, mut other: Self) {
        self.len = self.len.saturating_add(other.len);
        self.chunks.append(&mut other.chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    #[test]
    fn it_is_a_queue() {
        let mut rng = Rng::from_seed(1);
        let (mut queue, mut model) = (Queue::default(), VecDeque::new());
        for number in 0..100_000u32 {
            match rng.below(5) {
                0 | 1 => assert_eq!(queue.pop_front(), model.pop_front()),
                2 if rng.below(100) == 0 => {
                    let mut other = Queue::default();
                    (0..700).for_each(|entry| other.push_back(entry));
                    queue.append(other);
                    model.extend(0..700);
                }
                _ => {
                    queue.push_back(number);
                    model.push_back(number);
                }
            }
            assert_eq!((queue.len(), queue.front()), (model.len(), model.front()));
            assert_eq!(queue.is_empty(), model.is_empty());
        }
        assert!(queue.len() > CHUNK);
        let full = queue.chunks.iter().all(|chunk| !chunk.is_empty());
        assert!(full && queue.chunks.iter().all(|chunk| chunk.len() <= CHUNK));
        while let Some(entry) = queue.pop_front() {
            assert_eq!(Some(entry), model.pop_front());
        }
        assert!(model.is_empty() && queue.chunks.is_empty());
    }
}

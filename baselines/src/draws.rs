//! Numbered random draws that are a function of the coordinates.

use policy::Coordinates;

/// The random draws of one turn, or of a whole episode.
#[derive(Clone, Copy)]
pub(crate) struct Draws(Coordinates);

impl Draws {
    /// Returns draws that differ between turns.
    pub(crate) fn of_turn(coordinates: Coordinates) -> Self {
        Self(coordinates)
    }

    /// Returns draws that are the same in every turn of an episode.
    pub(crate) fn of_episode(coordinates: Coordinates) -> Self {
        Self(Coordinates {
            turn: u32::MAX,
            ..coordinates
        })
    }

    /// Returns a uniform number in [0, 1).
    pub(crate) fn uniform(self, draw: u32) -> f64 {
        self.0.at(draw).uniform()
    }

    /// Returns a uniform number below `count`, or 0 if `count` is 0.
    pub(crate) fn below(self, draw: u32, count: usize) -> usize {
        // The product can round up to `count`.
        ((self.uniform(draw) * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Returns one of the choices, of which there is at least one.
    pub(crate) fn pick<T>(self, draw: u32, choices: &[T]) -> &T {
        &choices[self.below(draw, choices.len())]
    }
}

//! Chance for scripted policies: numbered draws that are a function of the coordinates.

use policy::Coordinates;

/// Draws by number, of one turn or of the whole episode.
#[derive(Clone, Copy)]
pub(crate) struct Dice(pub(crate) Coordinates);

impl Dice {
    /// The same draws in every turn.
    pub(crate) fn of_episode(coordinates: Coordinates) -> Self {
        Self(Coordinates {
            turn: u32::MAX,
            ..coordinates
        })
    }

    pub(crate) fn unit(self, draw: u32) -> f64 {
        self.0.at(draw).uniform()
    }

    pub(crate) fn below(self, draw: u32, count: usize) -> usize {
        // The product can round up to `count`.
        ((self.unit(draw) * count as f64) as usize).min(count.saturating_sub(1))
    }

    pub(crate) fn pick<T>(self, draw: u32, choices: &[T]) -> &T {
        &choices[self.below(draw, choices.len())]
    }
}

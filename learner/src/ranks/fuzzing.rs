//! Both ends of a run of two ranks over streams that the fuzz targets in `learner/fuzz` make.

use std::{pin::Pin, time::Duration};

use proto::v1::{TrainRequest, TrainResponse};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::{Stream, StreamExt as _};

use super::{
    RankRole, Ranks,
    connection::{LeaderConnection, RankConnection},
};

impl Ranks {
    /// Returns rank 0 of a run whose other rank sends these messages. Must be called inside a
    /// runtime.
    pub fn leader_of(
        messages: Pin<Box<dyn Stream<Item = TrainRequest> + Send>>,
        sender: mpsc::Sender<TrainResponse>,
        timeout: Duration,
    ) -> Self {
        let incoming = Box::pin(messages.map(Ok));
        let mut other = RankConnection::new(sender, incoming, timeout, Handle::current());
        other.rank = 1;
        Self {
            role: RankRole::Leader(vec![other]),
            nccl: None,
        }
    }

    /// Returns the other rank of a run whose rank 0 sends these messages. Must be called inside a
    /// runtime.
    pub fn member_of(
        messages: Pin<Box<dyn Stream<Item = TrainResponse> + Send>>,
        sender: mpsc::Sender<TrainRequest>,
    ) -> Self {
        let incoming = Box::pin(messages.map(Ok));
        let leader = LeaderConnection::new(sender, incoming, Handle::current());
        Self {
            role: RankRole::Member {
                rank: 1,
                count: 2,
                leader,
            },
            nccl: None,
        }
    }
}

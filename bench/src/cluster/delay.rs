//! A TCP relay that adds latency, so that an env-node on this machine answers as if it were far.
//!
//! Invariant: bytes leave in the order and the spacing in which they came, each `one_way` later.
//! Bandwidth is not limited.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

/// Reads that may be on their way at once on a connection.
const ON_THE_WAY: usize = 4_096;

/// A relay, which ends when it is dropped.
pub(super) struct DelayRelay {
    /// HOST:PORT.
    pub(super) address: SocketAddr,
    task: JoinHandle<()>,
}

impl DelayRelay {
    /// Relays connections of a free port to `target`.
    pub(super) async fn start(target: String, one_way: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let target = target.clone();
                tokio::spawn(async move { relay(client, &target, one_way).await.ok() });
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for DelayRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(client: TcpStream, target: &str, one_way: Duration) -> Result<()> {
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        delayed(from_client, to_server, one_way),
        delayed(from_server, to_client, one_way)
    );
    Ok(())
}

/// Copies bytes until either side closes.
async fn delayed(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let read = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + one_way;
            if sender.send((due, buffer[..count].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = receiver.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent comes back in order, after both ways; several exchanges overlap.
    #[tokio::test]
    async fn bytes_arrive_in_order_and_late() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = echo.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (stream, _) = echo.accept().await.unwrap();
            let (mut from, mut to) = stream.into_split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        });
        let one_way = Duration::from_millis(40);
        let relay = DelayRelay::start(target, one_way).await.unwrap();
        let mut stream = TcpStream::connect(relay.address).await.unwrap();
        let began = Instant::now();
        for part in [b"first ", b"second"] {
            stream.write_all(part).await.unwrap();
        }
        let mut back = [0; 12];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"first second");
        assert!(began.elapsed() >= 2 * one_way);
    }
}

//! Speaks HTTP/1.1 and HTTP/2 by hand over TCP.

pub(crate) use crate::common::{
    http2::{frame_of, grpc_frame, read_to_end},
    served::{HttpResponse, connect, request},
};

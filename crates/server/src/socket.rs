//! A socket that tells when the other side has gone, also where the HTTP library no longer looks.
//!
//! The library notices that a client leaves by reading on while an answer is made. It does not read on where it already
//! has bytes behind the request, be they no more than a line break, and the work would go on for nobody. What a client
//! sends beyond that, and so stays unread, hides its end here as well.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection of a client.
pub(crate) struct Socket(pub(crate) TcpStream);

impl Socket {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.inner().poll_read(context, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.inner().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.inner().poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    /// The library calls this whenever it has nothing to write, and so while it waits for an answer: the place to look
    /// whether anybody waits with it. A look also has this task woken when the client leaves.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut inner = self.inner();
        ready!(inner.as_mut().poll_flush(context))?;
        let mut byte = [0];
        match inner.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(Error::new(ErrorKind::ConnectionAborted, "the client has left"))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(_)) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner().poll_shutdown(context)
    }
}

// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.transport

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.ReadableByteChannel
import java.util.concurrent.CompletableFuture

/**
 * Address where an executor serves chunks and receives messages.
 *
 * @param executor its Spark id. An executor that later starts at the same address has another
 */
final case class ChunkPeer(host: String, port: Int, executor: String) {
  override def toString: String = s"executor $executor at $host:$port"
}

/**
 * Part of a published block.
 *
 * @param offset bytes of the block before it
 * @param length bytes, at least 1, all of them in the block
 */
final case class Chunk(job: Long, block: String, offset: Long, length: Int) {
  require(
    offset >= 0 && length > 0 && offset <= Long.MaxValue - length,
    s"not a valid chunk of a block: $this"
  )
}

/** Destination of a chunk's bytes as they arrive. */
trait ChunkTarget {

  /**
   * Take all bytes that remain in `from`, which are the next ones of the chunk. Called on a network
   * thread, so it must not wait. An exception ends this fetch, not the shared connection.
   */
  def write(from: ByteBuffer): Unit
}

/** Target that can receive bytes without a copy, such as direct memory. */
trait DirectChunkTarget extends ChunkTarget {

  /**
   * Read the next bytes of the chunk from the socket into their place. On encrypted connections,
   * and for bytes that arrive together with other answers, `write` is called instead.
   *
   * @param maxCount bytes, at least 1
   * @return bytes that were read, as ReadableByteChannel defines it; it does not wait
   */
  def read(from: ReadableByteChannel, maxCount: Int): Int
}

/** Fetch of one chunk. */
trait ChunkFetch {

  /**
   * Fail the fetch with [[ChunkFailure.Cancelled]], unless it has already ended. After this call,
   * nothing is written to the fetch's target.
   */
  def cancel(): Unit
}

/** Reason why a chunk did not arrive. */
sealed abstract class ChunkFailure(message: String, cause: Throwable)
    extends IOException(message, cause)

object ChunkFailure {

  /**
   * There was no connection to the peer, the peer refused this executor, or the connection broke.
   */
  final class PeerLost(message: String, cause: Throwable) extends ChunkFailure(message, cause)

  final class Deadline(message: String) extends ChunkFailure(message, null)

  /** The peer does not have the block, or has a shorter one. */
  final class NotServed(message: String, cause: Throwable = null)
      extends ChunkFailure(message, cause)

  /** The target threw an exception, which is the cause. */
  final class TargetFailed(message: String, cause: Throwable) extends ChunkFailure(message, cause)

  /** The caller cancelled the fetch, or closed the network. */
  final class Cancelled(message: String) extends ChunkFailure(message, null)
}

/** Client for chunks of blocks that other executors serve. */
trait Chunks {

  /**
   * Ask `from` for a chunk. Its parts arrive when that executor sends them. Never wait, not even
   * for a connection.
   *
   * @param deadline by the clock's nanoTime
   * @param done called once, with None if the chunk has arrived. It runs on a network thread or on
   *    the thread that cancels, so it must not wait. Nothing is written to `into` after that
   */
  def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
      done: Option[ChunkFailure] => Unit
  ): ChunkFetch
}

/**
 * Part of a message. Parts of several messages to one peer may alternate; those of one message are
 * sent in order.
 *
 * @param number of the message. Incomplete messages to one peer must have different numbers
 */
final case class MessagePart(number: Long, message: Array[Byte], offset: Int, length: Int) {
  require(
    0 <= offset && 0 <= length && offset <= message.length - length,
    s"$this exceeds ${message.length} bytes"
  )
  override def toString: String = s"$length bytes at $offset of message $number"
}

/** One-way messages to other executors. */
trait PeerMessages {

  /**
   * Send a part without waiting. Parts for one peer arrive in the order of the calls. Parts that
   * wait for the network are batched.
   *
   * @param part of a message of at most [[PeerMessages.MaxBytes]]
   * @param done called once: with the nanoTime of the peer's clock when the peer has the part, or
   *    with None if the connection ended before the peer confirmed it. It runs on a network thread
   *    or on the caller's, so it must not wait
   */
  def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit

  /** Send a message as one part. */
  def send(to: ChunkPeer, message: Array[Byte])(done: Option[Long] => Unit): Unit =
    send(to, MessagePart(0, message, 0, message.length))(done)
}

object PeerMessages {
  val MaxBytes: Int = 1 << 20
}

/** Data that is sent to one peer in parts. */
trait OutboundTransfer {
  def to: ChunkPeer

  /**
   * Connection that carries the data; compare it with `==`. If a part is lost, all else that waits
   * for this connection is lost.
   */
  def connection: AnyRef

  /** Bytes of all parts. */
  def bytes: Int

  /**
   * Send the next part without waiting.
   *
   * @param done as in [[PeerMessages.send]]
   * @param refused called instead of `done` if the part cannot be read. The peer learns that, and
   *    gets no later part
   */
  def send(offset: Int, length: Int)(done: Option[Long] => Unit, refused: () => Unit): Unit
}

/** Chunk of this executor that `to` asked for. */
trait ChunkAnswer extends OutboundTransfer {
  def chunk: Chunk
  override def bytes: Int = chunk.length
}

/**
 * Receiver of messages and of requests for chunks. It is called on network threads, so it must not
 * wait.
 */
trait PeerMessageReceiver {

  /** Handle a peer's request for a chunk. */
  def onRequest(answer: ChunkAnswer): Unit

  /**
   * Handle a message. Messages of one peer come one at a time, those of several peers concurrently.
   *
   * @param message valid until this returns. An empty one only probed the connection
   */
  def onMessage(message: ByteBuffer): Unit

  /** Handle a connection to `peer` that broke or could not be made: messages may be lost. */
  def onPeerLost(peer: ChunkPeer): Unit
}

/** Endpoint of this executor in the network of chunks and messages. */
trait ChunkNetwork extends Chunks with PeerMessages {

  /** Address under which other executors reach it. */
  def address: ChunkPeer

  /** Parts of chunks that are being sent to others. */
  def sending: Int

  /**
   * Probe the open connections to `peers` without waiting, by an empty message over each. A
   * connection ends if its peer is silent for as long as a connection may be.
   *
   * @return a future that completes when every connection was confirmed alive or has ended
   */
  def probe(peers: Iterable[ChunkPeer]): CompletableFuture[Void]

  /** End all fetches, then release connections and threads. */
  def close(): Unit
}

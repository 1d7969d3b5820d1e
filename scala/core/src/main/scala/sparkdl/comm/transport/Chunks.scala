package sparkdl.comm.transport

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.ReadableByteChannel

/**
 * Where an executor serves the chunks of its blocks, and takes messages.
 *
 * @param executor Spark's id of it, which one that starts at the same address later does not have
 */
final case class ChunkPeer(host: String, port: Int, executor: String) {
  override def toString: String = s"executor $executor at $host:$port"
}

/**
 * A part of a published block.
 *
 * @param offset bytes of the block before it
 * @param length bytes, at least 1, all of them in the block
 */
final case class Chunk(job: Long, block: String, offset: Long, length: Int) {
  require(offset >= 0 && length > 0 && offset <= Long.MaxValue - length, s"no chunk of a block: $this")
}

/** Where the bytes of a chunk go as they arrive. */
trait ChunkTarget {

  /**
   * Takes all that remains in `from`, the next bytes of the chunk. It runs on a thread of the network, so it must not wait.
   * An exception ends this fetch, not the connection that others share.
   */
  def write(from: ByteBuffer): Unit
}

/** A target that can spare its bytes a copy, as direct memory can. */
trait DirectChunkTarget extends ChunkTarget {

  /**
   * Reads the next bytes of the chunk from the socket to where they go. On encrypted connections, and for what comes together
   * with other answers, `write` is called.
   *
   * @param atMost bytes, at least 1
   * @return how many `from` had, as ReadableByteChannel says it; it does not wait
   */
  def read(from: ReadableByteChannel, atMost: Int): Int
}

/** A chunk that was asked for. */
trait ChunkFetch {

  /** Ends it with [[ChunkFailure.Cancelled]] if it is not over. Once this returns nothing is written to its target. */
  def cancel(): Unit
}

/** Why a chunk did not come. */
sealed abstract class ChunkFailure(message: String, cause: Throwable) extends IOException(message, cause)

object ChunkFailure {

  /** There was no connection to the peer, it refused this executor, or the connection broke. */
  final class PeerLost(message: String, cause: Throwable) extends ChunkFailure(message, cause)

  final class Deadline(message: String) extends ChunkFailure(message, null)

  /** The peer has no such block, or one that is shorter. */
  final class NotServed(message: String, cause: Throwable = null) extends ChunkFailure(message, cause)

  /** The target threw an exception, which is the cause. */
  final class TargetFailed(message: String, cause: Throwable) extends ChunkFailure(message, cause)

  /** The caller cancelled it, or closed the network. */
  final class Cancelled(message: String) extends ChunkFailure(message, null)
}

/** The way to the chunks of blocks that other executors serve. */
trait Chunks {

  /**
   * Asks `from` for a chunk, of which parts come as soon as that executor sends them. It never waits: not for a connection either.
   *
   * @param deadline of the clock's nanoTime
   * @param done
   *   called once, without the failure if the chunk is here. It runs on a thread of the network, or on that which cancels, so
   *   it must not wait. Nothing is written to `into` any more
   */
  def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
      done: Option[ChunkFailure] => Unit
  ): ChunkFetch
}

/**
 * Some of a message's bytes. Parts of several messages to one peer may alternate; those of one message are sent in their order.
 *
 * @param number of the message, unlike those of others of which the peer does not have all parts
 */
final case class MessagePart(number: Long, message: Array[Byte], offset: Int, length: Int) {
  require(0 <= offset && 0 <= length && offset <= message.length - length, s"no part of ${message.length} bytes: $this")
  override def toString: String = s"$length bytes at $offset of message $number"
}

/** One-way messages to other executors. */
trait PeerMessages {

  /**
   * Sends without waiting. Parts for one peer arrive in the order in which they were sent; those that wait for the network
   * travel together.
   *
   * @param part of a message of at most [[PeerMessages.MaxBytes]]
   * @param done
   *   called once: when the peer has it, with the time of that by the nanoTime of the peer's clock, or with None if the
   *   connection ended before the peer said so. It runs on a thread of the network, or on the caller's, so it must not wait
   */
  def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit

  /** Likewise a message as one part. */
  def send(to: ChunkPeer, message: Array[Byte])(done: Option[Long] => Unit): Unit =
    send(to, MessagePart(0, message, 0, message.length))(done)
}

object PeerMessages {
  val MaxBytes: Int = 1 << 20
}

/** Something that goes to a peer in parts. */
trait Outbound {
  def to: ChunkPeer

  /** The connection that carries it, equal to no other one. Once a part is lost, so is all else that waits for this connection. */
  def connection: AnyRef

  /** Bytes of all parts. */
  def bytes: Int

  /**
   * Sends its next part, without waiting.
   *
   * @param done as of [[PeerMessages.send]]
   * @param refused called instead of `done` if the part cannot be had. The peer learns that, and gets no later part either
   */
  def send(offset: Int, length: Int)(done: Option[Long] => Unit, refused: () => Unit): Unit
}

/** The bytes of a chunk of this executor's, which `to` asked for. */
trait Answer extends Outbound {
  def chunk: Chunk
  override def bytes: Int = chunk.length
}

/** What messages are delivered to, and who is asked for chunks, by threads of the network: it must not wait. */
trait PeerMessageReceiver {

  /** A peer waits for a chunk. */
  def asked(answer: Answer): Unit

  /**
   * Those of one peer come one at a time, those of several at the same time.
   *
   * @param message can be read until this returns
   */
  def received(message: ByteBuffer): Unit

  /** The connection to `peer` broke, or there never was one: messages may not have arrived. */
  def lost(peer: ChunkPeer): Unit
}

/** This executor's place in the network of chunks and messages. */
trait ChunkNetwork extends Chunks with PeerMessages {

  /** Where the others reach it. */
  def here: ChunkPeer

  /** Chunks that are being sent to others. */
  def sending: Int

  /** Ends all fetches, then gives connections and threads back. */
  def close(): Unit
}

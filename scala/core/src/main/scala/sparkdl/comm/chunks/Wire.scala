// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Try

import sparkdl.comm.transport.{Chunk, ChunkPeer, MessagePart, PeerMessages}

/**
 * Wire protocol between executors, inside the frames of Spark's network library. Numbers are
 * big-endian.
 *
 *  - Hello, kind 1: the first message of a connection. Version (4 bytes), then the address where
 *   the sender serves: port (4 bytes), length of the host (2 bytes), host, the executor's Spark id.
 *   It has no answer, and nothing is served before it.
 *  - Batch, kind 2: parts of messages. Each part has the number of its message (8 bytes), the
 *   length of the whole message (4 bytes), its own length (4 bytes) and its bytes. Parts of one
 *   message are in order. The answer is kind 3.
 *  - Received, kind 3: confirms parts. The number of parts that have arrived over this connection
 *   (8 bytes), and when the last one did, in nanoseconds of a clock with any origin (8 bytes).
 *  - Ask, kind 4: asks for a chunk. A number (8 bytes), and `job/block/offset/length` in decimal.
 *   The answer is the parts of the chunk in order, as stream responses of Spark's library followed
 *   by the bytes. The id of each is `number/length` of the part in decimal. Or the answer is a
 *   stream failure with such an id, and nothing after it. Both are confirmed with kind 3, as parts
 *   of messages are.
 */
private[chunks] object Wire {
  val Version = 5

  /** Bytes of a part's header. */
  val PartHeadBytes = 16

  /** Bytes of the longest host name. Executor ids are shorter. */
  private val MostNameBytes = 255
  private val HelloKind: Byte = 1
  private val BatchKind: Byte = 2
  private val ReceivedKind: Byte = 3
  private val AskKind: Byte = 4
  private val PartId = "(-?[0-9]{1,19})/([0-9]{1,10})".r
  private val Request = "(-?[0-9]{1,19})/([A-Za-z0-9_]{1,200})/([0-9]{1,19})/([0-9]{1,10})".r

  /** Message that this version of the protocol does not allow. */
  final class ProtocolException(message: String) extends RuntimeException(message)

  sealed trait Message

  /**
   * First message of a connection.
   *
   * @param from where the sender serves
   */
  final case class Hello(version: Int, from: ChunkPeer) extends Message

  final case class Batch(parts: Seq[Part]) extends Message

  /**
   * Part of a message.
   *
   * @param number of the message
   * @param total bytes of the message
   * @param bytes a view of the memory that was decoded
   */
  final case class Part(number: Long, total: Int, bytes: ByteBuffer)

  /**
   * Confirmation of parts.
   *
   * @param total parts that arrived over this connection
   * @param time nanoseconds of the receiver's clock
   */
  final case class Received(total: Long, time: Long) extends Message

  /**
   * Request for a chunk.
   *
   * @param number identifies the answers, and is unique in its connection
   */
  final case class Ask(number: Long, chunk: Chunk) extends Message

  def request(chunk: Chunk): String = s"${chunk.job}/${chunk.block}/${chunk.offset}/${chunk.length}"

  /** Parse a request; return None if it is malformed. */
  private def chunk(request: String): Option[Chunk] = request match {
    case Request(job, block, offset, length) =>
      Try(Chunk(job.toLong, block, offset.toLong, length.toInt)).toOption
    case _ => None
  }

  def hello(from: ChunkPeer, version: Int = Version): ByteBuffer = {
    val Seq(host, executor) = Seq(from.host, from.executor).map(_.getBytes(UTF_8))
    val hello = ByteBuffer.allocate(11 + host.length + executor.length)
    hello.put(HelloKind).putInt(version).putInt(from.port).putShort(host.length.toShort).put(host)
      .put(executor).flip()
  }

  def ask(number: Long, chunk: Chunk): ByteBuffer = {
    val asked = request(chunk).getBytes(UTF_8)
    ByteBuffer.allocate(9 + asked.length).put(AskKind).putLong(number).put(asked).flip()
  }

  /**
   * Return the id of a chunk's part.
   *
   * @param number of the request
   * @param length bytes of the part; 0 if the chunk is refused
   */
  def partId(number: Long, length: Int): String = s"$number/$length"

  /** Parse an id of [[partId]] into number and length; return None if it is malformed. */
  def part(id: String): Option[(Long, Int)] = id match {
    case PartId(number, length) => Try((number.toLong, length.toInt)).toOption
    case _ => None
  }

  def batch(parts: Seq[MessagePart]): ByteBuffer = {
    val batch = ByteBuffer.allocate(1 + parts.map(PartHeadBytes + _.length).sum).put(BatchKind)
    parts.foreach { part =>
      batch.putLong(part.number).putInt(part.message.length).putInt(part.length)
      batch.put(part.message, part.offset, part.length)
    }
    batch.flip()
  }

  def received(total: Long, time: Long): ByteBuffer =
    ByteBuffer.allocate(17).put(ReceivedKind).putLong(total).putLong(time).flip()

  /**
   * Decode a message.
   *
   * @throws ProtocolException if it is malformed
   */
  def decode(message: ByteBuffer): Message = {
    def refuse(): Nothing =
      throw new ProtocolException(s"not a message of version $Version: ${preview(message)}")
    if (!message.hasRemaining) refuse()
    message.get() match {
      case HelloKind if message.remaining >= 10 =>
        val (version, port, hostBytes) =
          (message.getInt(), message.getInt(), message.getShort().toInt)
        if (hostBytes < 0 || hostBytes > math.min(message.remaining, MostNameBytes)) refuse()
        if (message.remaining - hostBytes > MostNameBytes) refuse()
        val host = text(message.slice(message.position(), hostBytes))
        Hello(
          version,
          ChunkPeer(host, port, text(message.position(message.position() + hostBytes)))
        )
      case AskKind if message.remaining >= 8 =>
        val number = message.getLong()
        Ask(number, chunk(text(message)).getOrElse(refuse()))
      case ReceivedKind if message.remaining == 16 => Received(message.getLong(), message.getLong())
      case BatchKind =>
        val parts = Seq.newBuilder[Part]
        while (message.hasRemaining) {
          if (message.remaining < PartHeadBytes) refuse()
          val (number, total, length) = (message.getLong(), message.getInt(), message.getInt())
          if (
            total > PeerMessages.MaxBytes || length < 0 || length > math.min(
              message.remaining,
              total
            )
          ) refuse()
          parts += Part(number, total, message.slice(message.position(), length))
          message.position(message.position() + length)
        }
        Batch(parts.result())
      case _ => refuse()
    }
  }

  private def text(message: ByteBuffer): String = UTF_8.decode(message).toString

  private def preview(message: ByteBuffer): String = {
    val first = new Array[Byte](math.min(16, message.limit()))
    message.get(0, first)
    s"${message.limit()} bytes that begin with ${first.map(byte => f"$byte%02x").mkString}"
  }
}

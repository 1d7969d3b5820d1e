package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Try

import sparkdl.comm.transport.{Chunk, ChunkPeer, MessagePart, PeerMessages}

/**
 * What executors say to each other inside the frames of Spark's network library, numbers big-endian.
 *
 *  - The first message of a connection is the hello: kind 1, version (4 bytes), and where the executor that says it serves:
 *    port (4 bytes), the length of the host (2 bytes), host, Spark's id of the executor. It is answered by nothing, and nothing
 *    is served before it.
 *  - A batch of parts of messages: kind 2, and for each one the number of its message (8 bytes), the length of the whole message
 *    (4 bytes), its own length (4 bytes) and its bytes. Those of one message come in their order. It is answered by how many
 *    parts of this connection have come, and when the last one did: kind 3, number (8 bytes), nanoseconds of a clock of which
 *    only differences mean anything (8 bytes).
 *  - A chunk is asked for: kind 4, a number (8 bytes), and `job/block/offset/length` in decimal. It is answered by parts of the
 *    chunk, in their order, as stream responses of Spark's, which have the bytes behind them; their id is `number/length` in
 *    decimal, of the part. Or by a stream failure with such an id, and nothing after it. Both are answered as parts of messages
 *    are, with kind 3.
 */
private[chunks] object Wire {
  val Version = 5

  /** Bytes before those of a part. */
  val PartHead = 16

  /** Bytes of the longest name that a host can have, and more than an executor's id has. */
  private val MostName = 255
  private val HelloKind: Byte = 1
  private val BatchKind: Byte = 2
  private val ReceivedKind: Byte = 3
  private val AskKind: Byte = 4
  private val PartId = "(-?[0-9]{1,19})/([0-9]{1,10})".r
  private val Request = "(-?[0-9]{1,19})/([A-Za-z0-9_]{1,200})/([0-9]{1,19})/([0-9]{1,10})".r

  /** A peer said what nobody of this version says. */
  final class ProtocolException(message: String) extends RuntimeException(message)

  sealed trait Message

  /** @param from where the executor that says it serves */
  final case class Hello(version: Int, from: ChunkPeer) extends Message

  final case class Batch(parts: Seq[Part]) extends Message

  /**
   * @param number of the message
   * @param total bytes of the message
   * @param bytes a view of the memory that was decoded
   */
  final case class Part(number: Long, total: Int, bytes: ByteBuffer)

  /**
   * @param total parts of this connection
   * @param time nanoseconds of the receiver's clock
   */
  final case class Received(total: Long, time: Long) extends Message

  /** @param number by which its answers are known; other chunks that were asked for over this connection have others */
  final case class Ask(number: Long, chunk: Chunk) extends Message

  def request(chunk: Chunk): String = s"${chunk.job}/${chunk.block}/${chunk.offset}/${chunk.length}"

  /** None if it asks for no chunk. */
  private def chunk(request: String): Option[Chunk] = request match {
    case Request(job, block, offset, length) => Try(Chunk(job.toLong, block, offset.toLong, length.toInt)).toOption
    case _ => None
  }

  def hello(from: ChunkPeer, version: Int = Version): ByteBuffer = {
    val Seq(host, executor) = Seq(from.host, from.executor).map(_.getBytes(UTF_8))
    val hello = ByteBuffer.allocate(11 + host.length + executor.length)
    hello.put(HelloKind).putInt(version).putInt(from.port).putShort(host.length.toShort).put(host).put(executor).flip()
  }

  def ask(number: Long, chunk: Chunk): ByteBuffer = {
    val asked = request(chunk).getBytes(UTF_8)
    ByteBuffer.allocate(9 + asked.length).put(AskKind).putLong(number).put(asked).flip()
  }

  /** @param length bytes of a part of the chunk that was asked for with this number; 0 if it cannot be had */
  def partId(number: Long, length: Int): String = s"$number/$length"

  /** What [[partId]] makes: number and length; None if it is something else. */
  def part(id: String): Option[(Long, Int)] = id match {
    case PartId(number, length) => Try((number.toLong, length.toInt)).toOption
    case _ => None
  }

  def batch(parts: Seq[MessagePart]): ByteBuffer = {
    val batch = ByteBuffer.allocate(1 + parts.map(PartHead + _.length).sum).put(BatchKind)
    parts.foreach { part =>
      batch.putLong(part.number).putInt(part.message.length).putInt(part.length)
      batch.put(part.message, part.offset, part.length)
    }
    batch.flip()
  }

  def received(total: Long, time: Long): ByteBuffer =
    ByteBuffer.allocate(17).put(ReceivedKind).putLong(total).putLong(time).flip()

  /** @throws ProtocolException if it is no message */
  def decode(message: ByteBuffer): Message = {
    def refuse(): Nothing = throw new ProtocolException(s"no message of version $Version: ${preview(message)}")
    if (!message.hasRemaining) refuse()
    message.get() match {
      case HelloKind if message.remaining >= 10 =>
        val (version, port, hostBytes) = (message.getInt(), message.getInt(), message.getShort().toInt)
        if (hostBytes < 0 || hostBytes > math.min(message.remaining, MostName)) refuse()
        if (message.remaining - hostBytes > MostName) refuse()
        val host = text(message.slice(message.position(), hostBytes))
        Hello(version, ChunkPeer(host, port, text(message.position(message.position() + hostBytes))))
      case AskKind if message.remaining >= 8 =>
        val number = message.getLong()
        Ask(number, chunk(text(message)).getOrElse(refuse()))
      case ReceivedKind if message.remaining == 16 => Received(message.getLong(), message.getLong())
      case BatchKind =>
        val parts = Seq.newBuilder[Part]
        while (message.hasRemaining) {
          if (message.remaining < PartHead) refuse()
          val (number, total, length) = (message.getLong(), message.getInt(), message.getInt())
          if (total > PeerMessages.MaxBytes || length < 0 || length > math.min(message.remaining, total)) refuse()
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

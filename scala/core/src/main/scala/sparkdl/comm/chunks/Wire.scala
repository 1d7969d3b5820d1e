package sparkdl.comm.chunks

import java.nio.ByteBuffer

import scala.util.Try

import sparkdl.comm.transport.{Chunk, PeerMessages}

/**
 * What executors say to each other inside the frames of Spark's network library, numbers big-endian.
 *
 *  - The first message of a connection is the hello: kind 1, version (4 bytes). It is answered by nothing, and nothing is
 *    served before it.
 *  - A batch of messages: kind 2, and for each one its length (4 bytes) and its bytes. It is answered by how many messages of
 *    this connection have come: kind 3, number (8 bytes).
 *  - A chunk is asked for by a stream request whose id is `job/block/offset/length` in decimal. The answer is Spark's stream
 *    response, which has the bytes behind it.
 */
private[chunks] object Wire {
  val Version = 2
  private val HelloKind: Byte = 1
  private val BatchKind: Byte = 2
  private val ReceivedKind: Byte = 3
  private val Request = "(-?[0-9]{1,19})/([A-Za-z0-9_]{1,200})/([0-9]{1,19})/([0-9]{1,10})".r

  /** A peer said what nobody of this version says. */
  final class ProtocolException(message: String) extends RuntimeException(message)

  sealed trait Message
  final case class Hello(version: Int) extends Message

  /** @param messages views of the memory that was decoded */
  final case class Batch(messages: Seq[ByteBuffer]) extends Message

  /** @param total messages of this connection */
  final case class Received(total: Long) extends Message

  def request(chunk: Chunk): String = s"${chunk.job}/${chunk.block}/${chunk.offset}/${chunk.length}"

  /** None if it asks for no chunk. */
  def chunk(request: String): Option[Chunk] = request match {
    case Request(job, block, offset, length) => Try(Chunk(job.toLong, block, offset.toLong, length.toInt)).toOption
    case _ => None
  }

  def hello(version: Int = Version): ByteBuffer = ByteBuffer.allocate(5).put(HelloKind).putInt(version).flip()

  def batch(messages: Seq[Array[Byte]]): ByteBuffer = {
    val batch = ByteBuffer.allocate(1 + messages.map(4 + _.length).sum).put(BatchKind)
    messages.foreach(message => batch.putInt(message.length).put(message))
    batch.flip()
  }

  def received(total: Long): ByteBuffer = ByteBuffer.allocate(9).put(ReceivedKind).putLong(total).flip()

  /** @throws ProtocolException if it is no message */
  def decode(message: ByteBuffer): Message = {
    def refuse() = throw new ProtocolException(s"no message of version $Version: ${preview(message)}")
    if (!message.hasRemaining) refuse()
    message.get() match {
      case HelloKind if message.remaining == 4 => Hello(message.getInt())
      case ReceivedKind if message.remaining == 8 => Received(message.getLong())
      case BatchKind =>
        val messages = Seq.newBuilder[ByteBuffer]
        while (message.hasRemaining) {
          val length = if (message.remaining >= 4) message.getInt() else refuse()
          if (length < 0 || length > math.min(message.remaining, PeerMessages.MaxBytes)) refuse()
          messages += message.slice(message.position(), length)
          message.position(message.position() + length)
        }
        Batch(messages.result())
      case _ => refuse()
    }
  }

  private def preview(message: ByteBuffer): String = {
    val first = new Array[Byte](math.min(16, message.limit()))
    message.get(0, first)
    s"${message.limit()} bytes that begin with ${first.map(byte => f"$byte%02x").mkString}"
  }
}

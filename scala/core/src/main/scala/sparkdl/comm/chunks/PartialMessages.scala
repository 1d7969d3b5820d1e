package sparkdl.comm.chunks

import java.nio.ByteBuffer

import scala.collection.mutable

/** Puts the parts of messages together that come over one connection. Not thread-safe. */
private[chunks] final class PartialMessages {
  import PartialMessages._

  private val incomplete = mutable.Map.empty[Long, Incomplete]

  /**
   * Returns the message if this is its last part.
   *
   * @throws Wire.ProtocolException if it is no part of the message of which the others with its number are
   */
  def add(part: Wire.Part): Option[ByteBuffer] =
    if (part.bytes.remaining == part.total) Some(part.bytes)
    else {
      val message = incomplete.getOrElseUpdate(part.number, new Incomplete(part.total))
      if (part.total != message.total || part.bytes.remaining > message.missing)
        throw new Wire.ProtocolException(
          s"message ${part.number} has ${message.total} bytes, ${message.missing} of them to come, and a part of " +
            s"${part.bytes.remaining} bytes of ${part.total} came"
        )
      message.add(part.bytes)
      if (message.missing > 0) None
      else {
        incomplete -= part.number
        Some(message.whole)
      }
    }
}

private object PartialMessages {

  /** It has no more memory than bytes have come: that a message is long is what somebody says. */
  private final class Incomplete(val total: Int) {
    private val parts = mutable.ArrayBuffer.empty[Array[Byte]]
    var missing: Int = total

    def add(bytes: ByteBuffer): Unit = {
      val part = new Array[Byte](bytes.remaining)
      bytes.get(part)
      parts += part
      missing -= part.length
    }

    def whole: ByteBuffer = {
      val all = ByteBuffer.allocate(total)
      parts.foreach(part => all.put(part))
      all.flip()
    }
  }
}

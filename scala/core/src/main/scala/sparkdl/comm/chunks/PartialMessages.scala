package sparkdl.comm.chunks

import java.nio.ByteBuffer

import scala.collection.mutable

/** Puts the parts of messages together that come over one connection. Not thread-safe. */
private[chunks] final class PartialMessages {
  private val incomplete = mutable.Map.empty[Long, ByteBuffer]

  /**
   * Returns the message if this is its last part.
   *
   * @throws Wire.ProtocolException if it is no part of the message of which the others with its number are
   */
  def add(part: Wire.Part): Option[ByteBuffer] =
    if (part.bytes.remaining == part.total) Some(part.bytes)
    else {
      val message = incomplete.getOrElseUpdate(part.number, ByteBuffer.allocate(part.total))
      if (message.capacity != part.total || message.remaining < part.bytes.remaining)
        throw new Wire.ProtocolException(
          s"message ${part.number} has ${message.capacity} bytes, ${message.remaining} of them to come, and a part of " +
            s"${part.bytes.remaining} bytes of ${part.total} came"
        )
      message.put(part.bytes)
      if (message.hasRemaining) None
      else {
        incomplete -= part.number
        Some(message.flip())
      }
    }
}

// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer

import scala.collection.mutable

/** Assembler of messages whose parts arrive over one connection. Not thread-safe. */
private[chunks] final class PartialMessages {
  import PartialMessages._

  private val incomplete = mutable.Map.empty[Long, Incomplete]

  /**
   * Add a part. Return the message if this is its last part.
   *
   * @throws Wire.ProtocolException if the part does not fit the earlier parts with its message
   *    number, or is empty although its message is not: a peer could send such parts without end
   */
  def add(part: Wire.Part): Option[ByteBuffer] = incomplete.get(part.number) match {
    case None if part.bytes.remaining == part.total => Some(part.bytes)
    case earlier =>
      val message = earlier.getOrElse(new Incomplete(part.total))
      if (
        part.total != message.total || !part.bytes.hasRemaining ||
        part.bytes.remaining > message.missing
      )
        throw new Wire.ProtocolException(
          s"message ${part.number} has ${message.total} bytes and lacks ${message.missing}, but a" +
            s" part of ${part.bytes.remaining} bytes of ${part.total} arrived"
        )
      message.add(part.bytes)
      if (message.missing > 0) {
        incomplete(part.number) = message
        None
      } else {
        incomplete -= part.number
        Some(message.whole)
      }
  }
}

private object PartialMessages {

  /**
   * Message that lacks parts. It allocates only the bytes that have arrived, as the announced
   * length cannot be trusted.
   */
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

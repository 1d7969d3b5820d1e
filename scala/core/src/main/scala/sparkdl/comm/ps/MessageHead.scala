package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * What every message of rank `from` to rank `to` of a job begins with. All numbers of messages are big-endian.
 *
 * @param kind of message; those of a [[Notice]] say which blocks it is about
 */
private[ps] final case class MessageHead(job: Long, to: Int, from: Int, kind: Byte) {

  /** The message with a body of so many bytes, which `put` writes. */
  def encode(bodyBytes: Int)(put: ByteBuffer => Unit): Array[Byte] = {
    val bytes = ByteBuffer.allocate(MessageHead.Bytes + bodyBytes)
    put(bytes.putLong(job).putInt(to).putInt(from).put(kind))
    bytes.array
  }
}

private[ps] object MessageHead {
  private val Bytes = 17

  /**
   * @param kinds that are expected
   * @param leastBody bytes of the shortest body
   * @param read has the head, and the body as what remains of the buffer
   * @return None if it is another message, or `read` finds that it makes no sense
   */
  def decode[T](message: ByteBuffer, kinds: Set[Byte], leastBody: Int)(
      read: (MessageHead, ByteBuffer) => Option[T]
  ): Option[T] =
    if (message.remaining < Bytes + leastBody) None
    else {
      val fields = message.slice()
      val head = MessageHead(fields.getLong(), fields.getInt(), fields.getInt(), fields.get())
      if (kinds(head.kind)) read(head, fields) else None
    }
}

package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Beginning of every message from rank `from` to rank `to` of a job. All numbers of messages are big-endian.
 *
 * @param kind of message; the kinds of a [[Notice]] say which blocks it is about
 */
private[ps] final case class MessageHead(job: Long, to: Int, from: Int, kind: Byte) {

  /** Encode a message with a body of `bodyBytes` bytes, which `put` writes. */
  def encode(bodyBytes: Int)(put: ByteBuffer => Unit): Array[Byte] = {
    val bytes = ByteBuffer.allocate(MessageHead.Bytes + bodyBytes)
    put(bytes.putLong(job).putInt(to).putInt(from).put(kind))
    bytes.array
  }
}

private[ps] object MessageHead {
  private val Bytes = 17

  /**
   * Decode a message of one of `kinds`.
   *
   * @param leastBody bytes of the shortest body.
   * @param read decodes the rest of the buffer, which is the body
   * @return None if it is another message, or `read` returns None
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

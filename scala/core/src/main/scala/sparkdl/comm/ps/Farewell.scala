package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8

/**
 * Rank `from` tells rank `to` that it failed, so that nobody waits for it. Its encoding is the fields in their order, numbers
 * big-endian, the kind where a [[Notice]] has its own.
 */
private[comm] final case class Farewell(job: Long, to: Int, from: Int, reason: String) {
  def encode: Array[Byte] = {
    val text = reason.take(Farewell.MostCharacters).getBytes(UTF_8)
    val bytes = ByteBuffer.allocate(Farewell.HeadBytes + text.length)
    bytes.putLong(job).putInt(to).putInt(from).put(Farewell.Kind).put(text).array
  }
}

private[comm] object Farewell {
  val Kind: Byte = 4
  private val HeadBytes = 17
  private val MostCharacters = 2000

  /** None if it is no farewell. */
  def decode(message: ByteBuffer): Option[Farewell] =
    if (message.remaining < HeadBytes) None
    else {
      val fields = message.slice()
      val (job, to, from, kind) = (fields.getLong(), fields.getInt(), fields.getInt(), fields.get())
      if (kind == Kind) Some(Farewell(job, to, from, UTF_8.decode(fields).toString)) else None
    }
}

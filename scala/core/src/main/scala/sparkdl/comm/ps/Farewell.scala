package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8

/**
 * Message in which rank `from` tells rank `to` that it failed. Then no rank waits for it. It is encoded as a
 * [[MessageHead]] and the reason.
 */
private[comm] final case class Farewell(job: Long, to: Int, from: Int, reason: String) {
  def encode: Array[Byte] = {
    val text = reason.take(Farewell.MostCharacters).getBytes(UTF_8)
    MessageHead(job, to, from, Farewell.Kind).encode(text.length)(_.put(text))
  }
}

private[comm] object Farewell {
  val Kind: Byte = 4
  private val MostCharacters = 2000

  /** Decode a message; return None if it reports no failure. */
  def decode(message: ByteBuffer): Option[Farewell] =
    MessageHead.decode(message, Set(Kind), leastBody = 0) { (head, body) =>
      Some(Farewell(head.job, head.to, head.from, UTF_8.decode(body).toString))
    }
}

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8

/**
 * Rank `from` tells rank `to` that it failed, so that nobody waits for it. Its encoding is a [[MessageHead]] and the reason.
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

  /** None if it is no farewell. */
  def decode(message: ByteBuffer): Option[Farewell] =
    MessageHead.decode(message, Set(Kind), leastBody = 0) { (head, body) =>
      Some(Farewell(head.job, head.to, head.from, UTF_8.decode(body).toString))
    }
}

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8

/**
 * Message in which rank `from` tells rank `to` that it failed. Then no rank waits for it. It is encoded as a
 * [[MessageHead]] and the reason.
 */
private[comm] final case class PeerFailed(job: Long, to: Int, from: Int, reason: String) {
  def encode: Array[Byte] = {
    val text = reason.take(PeerFailed.MostCharacters).getBytes(UTF_8)
    MessageHead(job, to, from, PeerFailed.Kind).encode(text.length)(_.put(text))
  }
}

private[comm] object PeerFailed {
  val Kind: Byte = 4
  private val MostCharacters = 2000

  /** Decode a message; return None if it reports no failure. */
  def decode(message: ByteBuffer): Option[PeerFailed] =
    MessageHead.decode(message, Set(Kind), leastBody = 0) { (head, body) =>
      Some(PeerFailed(head.job, head.to, head.from, UTF_8.decode(body).toString))
    }
}

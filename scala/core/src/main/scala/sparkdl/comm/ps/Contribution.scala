package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Message in which rank `from` gives rank `to` its part of a [[Gathering]]. It is encoded as a [[MessageHead]], round
 * and part.
 *
 * @param round number of the round
 */
private[comm] final case class Contribution(job: Long, to: Int, from: Int, round: Long, part: Array[Byte]) {
  def encode: Array[Byte] =
    MessageHead(job, to, from, Contribution.Kind).encode(Contribution.NumberBytes + part.length)(
      _.putLong(round).put(part)
    )
}

private[comm] object Contribution {
  val Kind: Byte = 3
  private val NumberBytes = 8

  /** Decode a message; return None if it is not a contribution. */
  def decode(message: ByteBuffer): Option[Contribution] =
    MessageHead.decode(message, Set(Kind), NumberBytes) { (head, body) =>
      val round = body.getLong()
      val part = new Array[Byte](body.remaining)
      body.get(part)
      Some(Contribution(head.job, head.to, head.from, round, part))
    }
}

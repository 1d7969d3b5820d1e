package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Rank `from` gives rank `to` its part of what all ranks gather. Its encoding is a [[MessageHead]] and the fields that follow.
 *
 * @param round counts what was gathered
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

  /** None if it is no contribution. */
  def decode(message: ByteBuffer): Option[Contribution] =
    MessageHead.decode(message, Set(Kind), NumberBytes) { (head, body) =>
      val round = body.getLong()
      val part = new Array[Byte](body.remaining)
      body.get(part)
      Some(Contribution(head.job, head.to, head.from, round, part))
    }
}

package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Rank `from` gives rank `to` its part of what all ranks gather. Its encoding is the fields in their order, numbers
 * big-endian, the kind where a [[Notice]] has its own.
 *
 * @param round counts what was gathered
 */
private[comm] final case class Contribution(job: Long, to: Int, from: Int, round: Long, part: Array[Byte]) {
  def encode: Array[Byte] = {
    val bytes = ByteBuffer.allocate(Contribution.HeadBytes + part.length)
    bytes.putLong(job).putInt(to).putInt(from).put(Contribution.Kind).putLong(round).put(part).array
  }
}

private[comm] object Contribution {
  val Kind: Byte = 3
  private val HeadBytes = 25

  /** None if it is no contribution. */
  def decode(message: ByteBuffer): Option[Contribution] =
    if (message.remaining < HeadBytes) None
    else {
      val fields = message.slice()
      val (job, to, from, kind) = (fields.getLong(), fields.getInt(), fields.getInt(), fields.get())
      val round = fields.getLong()
      lazy val part = {
        val bytes = new Array[Byte](fields.remaining)
        fields.get(bytes)
        bytes
      }
      if (kind == Kind) Some(Contribution(job, to, from, round, part)) else None
    }
}

package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Rank `from` tells rank `to` that it published a block: who needs bytes fetches them. Its encoding is the fields in their
 * order, as a [[MessageHead]] begins.
 *
 * @param blockBytes of the block
 * @param contents all of the block, if it fits inline: nothing is fetched then. Empty otherwise
 */
private[comm] final case class Notice(
    job: Long,
    to: Int,
    from: Int,
    kind: Notice.Kind,
    bucket: Int,
    version: Long,
    blockBytes: Long,
    contents: ByteBuffer
) {
  def isInline: Boolean = contents.hasRemaining

  def encode: Array[Byte] = MessageHead(job, to, from, kind).encode(Notice.NumberBytes + contents.remaining) {
    _.putInt(bucket).putLong(version).putLong(blockBytes).put(contents.duplicate)
  }
}

private[comm] object Notice {
  type Kind = Byte

  /** Parameters of the shard that `from` serves. */
  val Parameters: Kind = 0

  /** The gradients that `from` computed for the shard that `to` serves. */
  val Gradients: Kind = 1

  /** The block is to be fetched. */
  val ToFetch: ByteBuffer = ByteBuffer.allocate(0).asReadOnlyBuffer

  private val NumberBytes = 20

  /** None if it is no notice. Its contents are copied: a notice may come long before anybody waits for it. */
  def decode(message: ByteBuffer): Option[Notice] =
    MessageHead.decode(message, Set(Parameters, Gradients), NumberBytes) { (head, body) =>
      val (bucket, version, blockBytes) = (body.getInt(), body.getLong(), body.getLong())
      lazy val contents = ByteBuffer.allocate(body.remaining).put(body).flip()
      if (blockBytes > 0 && (!body.hasRemaining || body.remaining == blockBytes))
        Some(Notice(head.job, head.to, head.from, head.kind, bucket, version, blockBytes, contents))
      else None
    }
}

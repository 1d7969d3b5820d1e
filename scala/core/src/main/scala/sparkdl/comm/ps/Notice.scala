package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Message in which rank `from` tells rank `to` that it published a block. The rank that needs the bytes fetches them.
 * It is encoded as a [[MessageHead]] and the other fields in their order.
 *
 * @param blockBytes of the block
 * @param contents the whole block if it is inline, so that nobody fetches it; empty otherwise
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

  /** Contents of a notice whose block must be fetched. */
  val ToFetch: ByteBuffer = ByteBuffer.allocate(0).asReadOnlyBuffer

  private val NumberBytes = 20

  /**
   * Decode a message; return None if it is not a notice. The contents are copied, as a notice may come long before it
   * is used.
   */
  def decode(message: ByteBuffer): Option[Notice] =
    MessageHead.decode(message, Set(Parameters, Gradients), NumberBytes) { (head, body) =>
      val (bucket, version, blockBytes) = (body.getInt(), body.getLong(), body.getLong())
      lazy val contents = ByteBuffer.allocate(body.remaining).put(body).flip()
      if (blockBytes > 0 && (!body.hasRemaining || body.remaining == blockBytes))
        Some(Notice(head.job, head.to, head.from, head.kind, bucket, version, blockBytes, contents))
      else None
    }
}

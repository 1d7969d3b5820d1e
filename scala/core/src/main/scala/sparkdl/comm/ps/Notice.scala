package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Rank `from` tells rank `to` that it published a block: who needs bytes fetches them. Its encoding is the fields in their
 * order, numbers big-endian.
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

  def encode: Array[Byte] = {
    val bytes = ByteBuffer.allocate(Notice.HeadBytes + contents.remaining)
    bytes.putLong(job).putInt(to).putInt(from).put(kind).putInt(bucket).putLong(version).putLong(blockBytes)
    bytes.put(contents.duplicate).array
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

  private val HeadBytes = 37

  /** None if it is no notice. Its contents are copied: a notice may come long before anybody waits for it. */
  def decode(message: ByteBuffer): Option[Notice] =
    if (message.remaining < HeadBytes) None
    else {
      val fields = message.slice()
      val (job, to, from) = (fields.getLong(), fields.getInt(), fields.getInt())
      val (kind, bucket, version, blockBytes) = (fields.get(), fields.getInt(), fields.getLong(), fields.getLong())
      val isKind = kind == Parameters || kind == Gradients
      val isSize = blockBytes > 0 && (!fields.hasRemaining || fields.remaining == blockBytes)
      lazy val contents = ByteBuffer.allocate(fields.remaining).put(fields).flip()
      if (isKind && isSize) Some(Notice(job, to, from, kind, bucket, version, blockBytes, contents)) else None
    }
}

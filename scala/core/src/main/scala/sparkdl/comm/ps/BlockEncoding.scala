// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

/** Range of `count` bytes of a segment, from `offset` on. */
private[comm] final case class ByteRange(offset: Long, count: Long)

/**
 * Wire format of a block's float32 elements. Implementations return byte ranges of a [[Segment]].
 * Call them inside its `access`. Any number of threads may call them at once, for different blocks.
 *
 * A function of an element range gives its place, as a byte offset. The values that the model
 * computes with are one flat vector. The optimizer updates the master weights
 * ([[SegmentMap.master]]).
 */
private[comm] trait BlockEncoding {

  /** Name in spark.sparkdl.comm.ps.wire. */
  def name: String

  /**
   * Return the maximum bytes of a block; at least 1 unless the shape is empty. A block of several
   * layers has at most as many as one block per layer.
   */
  def maxBytes(shape: BlockShape): Long

  /**
   * Return the approximate bytes of a block of `elements` elements. The share `density` of them is
   * not zero.
   */
  def expectedBytes(elements: Long, density: Double): Long

  /**
   * Return the bytes of memory that [[encode]] needs for a copy. The same bound for several layers
   * holds as in [[maxBytes]].
   */
  def stagingBytes(shape: BlockShape): Long

  /** Return true if a block may have so many bytes. Call it before they arrive. */
  def isValidLength(shape: BlockShape, bytes: Long): Boolean

  /**
   * Encode the elements at `from` as a block.
   *
   * @return the block's byte ranges in the order of transfer: one range that begins at `staging`,
   *    or some ranges in the elements' own place
   */
  def encode(
      memory: Segment,
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long
  ): IndexedSeq[ByteRange]

  /**
   * Return the byte ranges of a block of `bytes` bytes that [[encode]] made with the same
   * arguments.
   */
  def placeOf(
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long,
      bytes: Long
  ): IndexedSeq[ByteRange] =
    IndexedSeq(ByteRange(staging, bytes))

  /**
   * Replace the elements at `to` by the sum of the blocks `before`, of these elements and of the
   * blocks `after`, in this order.
   */
  def addInto(
      memory: Segment,
      before: Seq[ByteRange],
      after: Seq[ByteRange],
      shape: BlockShape,
      to: ElementRange => Long
  ): Unit
}

private[comm] object BlockEncoding {
  private val all: Seq[DenseEncoding] = Seq(Fp32, Bf16, Fp16)

  /** Encoding for gradients only; parameters need a dense one. */
  val Sparse: BlockEncoding = SparseEncoding

  /**
   * Return the encoding of this name.
   *
   * @throws IllegalArgumentException if there is none
   */
  def apply(name: String): DenseEncoding = all
    .find(_.name == name)
    .getOrElse(throw new IllegalArgumentException(
      s"spark.sparkdl.comm.ps.wire=$name does not exist: set one of" +
        s" ${all.map(_.name).mkString(", ")}"
    ))
}

/** Encodings of the two kinds of blocks. */
private[comm] final case class Encodings(parameters: DenseEncoding, gradients: BlockEncoding)

private[comm] object Encodings {
  def apply(both: DenseEncoding): Encodings = Encodings(both, both)
}

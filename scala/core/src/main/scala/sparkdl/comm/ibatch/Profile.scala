// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

/**
 * Measured times of a network on a cluster, for each layer, in the order in which forward computes
 * the layers.
 *
 * Pull and push have a profile each. A push is a pull that runs backwards in time: backward
 * computes the last layer first, and what must be pulled before a layer is computed must be pushed
 * after it. So everything about pulls also holds for pushes, with `compute` as the times of
 * backward.
 *
 * @param startup seconds that one communication takes before its first byte (the paper's T_s).
 * @param transfer seconds to transfer each layer's parameters, or gradients (T_t)
 * @param compute seconds of each layer's forward, or backward (C)
 * @param bytes of each layer; empty if unknown. [[Policy.Fixed]] needs them
 * @param noticeBytes largest batch, in bytes, that travels inside its notices
 * @param gap seconds of a start-up that cannot overlap with other start-ups; None: all of it. A
 *    plan of one direction alone lets none overlap, as in the paper
 * @param sum seconds to add up each layer's gradients; empty: none
 * @param update seconds to update and publish each layer; empty: none
 * @param handling seconds for which each batch keeps the rank from computing, besides its update.
 *    Only [[IterationModel]] counts them
 * @param isSequential a batch is requested only after the one before has arrived, as the paper's
 *    one thread does
 */
private[ibatch] final case class Profile(
    startup: Double,
    transfer: IndexedSeq[Double],
    compute: IndexedSeq[Double],
    bytes: IndexedSeq[Long] = IndexedSeq.empty,
    noticeBytes: Long = 0,
    isSequential: Boolean = false,
    gap: Option[Double] = None,
    sum: IndexedSeq[Double] = IndexedSeq.empty,
    update: IndexedSeq[Double] = IndexedSeq.empty,
    handling: Double = 0
) {
  private def times = (Seq(startup, handling) ++ transfer ++ compute ++ sum ++ update) ++ gap
  require(transfer.nonEmpty, "a profile has at least one layer")
  require(
    transfer.size == compute.size && (bytes.isEmpty || bytes.size == transfer.size),
    s"a profile needs as many layers in transfer (${transfer.size}) as in compute" +
      s" (${compute.size}) and bytes (${bytes.size})"
  )
  require(
    times.forall(time => time >= 0 && time < Double.PositiveInfinity),
    "a profile's times must be finite and not negative"
  )
  require(bytes.forall(_ >= 0), "a profile's bytes must not be negative")
  require(
    Seq(sum, update).forall(layers => layers.isEmpty || layers.size == transfer.size),
    "a profile needs sums and updates for all layers, or for none"
  )
  require(gap.forall(_ <= startup), "a profile's gap must not exceed its start-up")

  def layers: Int = transfer.size

  /**
   * Return true if a batch travels inside its notices, so that nobody fetches it. Return false if
   * [[bytes]] is empty, because the size of the batch is then unknown.
   */
  def isInline(batch: Batch): Boolean =
    bytes.nonEmpty && bytes.slice(batch.first - 1, batch.last).sum <= noticeBytes
}

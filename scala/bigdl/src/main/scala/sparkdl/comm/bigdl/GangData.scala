// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.apache.spark.{OneToOneDependency, Partition, TaskContext}
import org.apache.spark.rdd.RDD

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.feature.dataset.MiniBatch
import com.intel.analytics.bigdl.dllib.utils.RandomGenerator

/** Rows of one rank, while its task runs. */
private[bigdl] final class RankData(
    train: () => Iterator[MiniBatch[Float]],
    evaluate: () => Iterator[MiniBatch[Float]],
    orders: () => Seq[Array[Int]]
) {

  /**
   * Return a batch. Each call computes the partition of the dataset again, as DistriOptimizer does.
   * So a batch may begin at any row, and does not continue the previous one.
   */
  def next(): MiniBatch[Float] = train().next()

  def validation(): Iterator[MiniBatch[Float]] = evaluate()

  /** Shuffle the rows, as a dataset's `shuffle` does. */
  def shuffle(): Unit = orders().foreach { order =>
    order.indices.foreach(index => order(index) = index)
    RandomGenerator.shuffle(order)
  }
}

/**
 * Rows of a gang, one partition for each rank. An RDD computes a partition again whenever a rank
 * asks, from cached rows. So one task can take any number of batches.
 */
private[bigdl] final class GangData private (
    train: RDD[MiniBatch[Float]],
    validation: Option[RDD[MiniBatch[Float]]],
    orders: Seq[RDD[Array[Int]]]
) extends RDD[RankData](
      train.sparkContext,
      (Seq[RDD[_]](train) ++ validation ++ orders).map(rdd => new OneToOneDependency(rdd))
    ) {
  import GangData._

  override protected def getPartitions: Array[Partition] = train.partitions.map { of =>
    def same(rdd: RDD[_]): Partition = rdd.partitions(of.index)
    new RankPartition(of.index, of, validation.map(same), orders.map(same))
  }

  override def getPreferredLocations(split: Partition): Seq[String] =
    train.preferredLocations(split.asInstanceOf[RankPartition].train)

  override def compute(split: Partition, context: TaskContext): Iterator[RankData] = {
    val of = split.asInstanceOf[RankPartition]
    def rows[T](rdd: RDD[T], partition: Partition): Iterator[T] = rdd.iterator(partition, context)
    Iterator.single(new RankData(
      () => rows(train, of.train),
      () =>
        validation.zip(of.validation).iterator.flatMap { case (rdd, partition) =>
          rows(rdd, partition)
        },
      () => orders.zip(of.orders).map { case (rdd, partition) => rows(rdd, partition).next() }
    ))
  }
}

private[bigdl] object GangData {
  private final case class RankPartition(
      index: Int,
      train: Partition,
      validation: Option[Partition],
      orders: Seq[Partition]
  ) extends Partition

  /**
   * Combine the datasets of a training.
   *
   * @param train cached, in as many partitions as there are ranks
   * @param validation cached, in as many partitions as there are ranks
   * @throws UnsupportedTrainingException if a dataset has another number of partitions
   */
  def apply(
      train: RDD[MiniBatch[Float]],
      validation: Option[RDD[MiniBatch[Float]]],
      ranks: Int
  ): GangData = {
    Seq("training" -> Some(train), "validation" -> validation).foreach { case (name, data) =>
      data.map(_.partitions.length).filter(_ != ranks).foreach { partitions =>
        throw new UnsupportedTrainingException(
          s"the $name data have $partitions partitions, but BigDL's engine has $ranks executors:" +
            " use one partition for each (DataSet.rdd makes as many)"
        )
      }
    }
    new GangData(train, validation, SparkdlBigDL.rowOrders(train))
  }
}

// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.spark.internal.Logging

import sparkdl.comm.flow.Urgency
import sparkdl.comm.transport.{Blocks, ChunkPeer}

/** Blocks that one rank has published and not retired. */
private[ps] final class PublishedBlocks(job: Long, blocks: Blocks, served: ServedBlocks)
    extends Logging {
  import PublishedBlocks._

  private val names = new ConcurrentHashMap[Label, Set[String]]
  private var warnedOfSpill = false

  /**
   * Publish a block.
   *
   * @param as how it is served to peers
   */
  def put(
      name: String,
      kind: Notice.Kind,
      version: Long,
      chunks: Array[ByteBuffer],
      as: ServedBlocks.Priority
  ): Unit = {
    val bytes = chunks.map(_.remaining.toLong).sum
    names.merge(Label(kind, version), Set(name), (known, one) => known ++ one)
    blocks.put(job, name, chunks)
    served.add(job, name, as)
    if (!warnedOfSpill && blocks.status(job, name).exists { case (_, disk) => disk > 0 }) {
      warnedOfSpill = true
      logWarning(
        s"Spark has no free storage memory for block $name of $bytes bytes and keeps it on disk," +
          " which makes every iteration slower: set spark.memory.offHeap.enabled=true and" +
          " spark.memory.offHeap.size (blocks of a rank take as much as the model), raise" +
          " spark.executor.memory, or unpersist what is cached"
      )
    }
  }

  /**
   * Retire all blocks of a version.
   *
   * @return the name of a block that a reader still held when `isOver` ended the wait
   */
  def retire(kind: Notice.Kind, version: Long, isOver: () => Boolean): Option[String] = {
    val label = Label(kind, version)
    namesOf(label).find(!retire(label, _, isOver))
  }

  /** Retire all blocks. Return false if readers were left when `isOver` ended the wait. */
  def clear(isOver: () => Boolean): Boolean = {
    for (label <- names.keySet.asScala; name <- namesOf(label)) retire(label, name, isOver)
    names.isEmpty
  }

  private def namesOf(label: Label): Set[String] = names.getOrDefault(label, Set.empty)

  private def retire(label: Label, name: String, isOver: () => Boolean): Boolean = {
    val gone = blocks.retire(job, name, isOver)
    if (gone) {
      served.remove(job, name)
      names.computeIfPresent(label, (_, known) => if (known == Set(name)) null else known - name)
    }
    gone
  }
}

private[ps] object PublishedBlocks {
  private final case class Label(kind: Notice.Kind, version: Long)
}

/** Priorities of the blocks that the ranks of this executor serve, by job and name. */
private[ps] final class ServedBlocks {
  import ServedBlocks._

  private val priorities = new ConcurrentHashMap[(Long, String), Priority]

  def add(job: Long, name: String, block: Priority): Unit = priorities.put((job, name), block)

  def remove(job: Long, name: String): Unit = priorities.remove((job, name))

  /** Return the priority of a block; any priority if it is not served. */
  def apply(job: Long, name: String): Priority = priorities.getOrDefault((job, name), Unknown)
}

private[ps] object ServedBlocks {

  /**
   * Priority of a block.
   *
   * @param turn position among equally urgent blocks, by the peer that asks; see
   *    [[sparkdl.comm.flow.SendRequest]]
   */
  final case class Priority(urgency: Urgency, turn: ChunkPeer => Int)

  private val Unknown = Priority(BlockUrgencies.OfMessages, _ => 0)
}

/** Names of blocks, made of shard, bucket and version. The block bridge adds the job. */
private[ps] object BlockNames {
  def parameters(server: Int, bucket: Int, version: Long): String =
    s"sparkdl_p_${server}_${bucket}_$version"

  def gradients(worker: Int, server: Int, bucket: Int, version: Long): String =
    s"sparkdl_g_${worker}_${server}_${bucket}_$version"
}

package org.apache.spark.storage

import java.nio.ByteBuffer

import org.apache.spark.SparkEnv

/** Where Spark serves the blocks of an executor. */
final case class PlainServer(host: String, port: Int, executorId: String)

/** A whole block in one buffer, as Spark fetches broadcasts: what FetchBench compares with. */
object PlainFetch {
  private def manager = SparkEnv.get.blockManager

  /** This executor's. */
  def here: PlainServer = {
    val id = manager.blockManagerId
    PlainServer(id.host, id.port, id.executorId)
  }

  def apply(from: PlainServer, job: Long, name: String): ByteBuffer = {
    val id = BroadcastBlockId(job, name).name
    manager.blockTransferService.fetchBlockSync(from.host, from.port, from.executorId, id, null).nioByteBuffer
  }
}

// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.io.{FileNotFoundException, FilterInputStream, IOException, InputStream, OutputStream}
import java.nio.file.{Files, Paths}

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, FileStatus, FileSystem, Path}
import org.apache.hadoop.io.IOUtils

import sparkdl.comm.CommException

/**
 * Files for a Python worker, which has no Hadoop of its own. They have any path that Hadoop can
 * reach with this executor's settings (hdfs:, s3a:, viewfs:, file:). All failures are
 * CommExceptions of the kind File that name the path.
 *
 * @param isOver returns true once the worker has left. Then a copy in progress ends, because the
 *    worker's successor may write to the same path
 */
private[bridge] final class HadoopFiles(conf: => Configuration, isOver: () => Boolean) {
  import HadoopFiles._

  /**
   * Copy a local file to `remote`, replacing what is there; parents are made. A copy that fails
   * leaves nothing.
   */
  def put(local: String, remote: String): Unit = orFileError(s"copy $local to $remote") {
    val source = Paths.get(local)
    if (!Files.isRegularFile(source))
      throw new FileNotFoundException(s"$local is missing or is not a regular file")
    val (system, target) = locate(remote)
    val from = Files.newInputStream(source)
    try copy(from, system.create(target, true), system.delete(target, false))
    finally from.close()
  }

  /**
   * Copy the file at `remote` to a local path, replacing what is there. A copy that fails leaves
   * nothing.
   */
  def get(remote: String, local: String): Unit = orFileError(s"copy $remote to $local") {
    val (system, source) = locate(remote)
    val target = Paths.get(local)
    val from = system.open(source)
    try copy(from, Files.newOutputStream(target), Files.deleteIfExists(target))
    finally from.close()
  }

  /** Return the entries of the directory `remote`, by name. */
  def list(remote: String): Seq[FileStatus] = orFileError(s"list $remote") {
    val (system, directory) = locate(remote)
    if (!system.getFileStatus(directory).isDirectory) throw new IOException("not a directory")
    system.listStatus(directory).toSeq.sortBy(_.getPath.getName)
  }

  /**
   * Rename a file or directory within its file system. Refuse an existing `to`: Hadoop would move
   * `from` *into* a directory.
   */
  def rename(from: String, to: String): Unit = orFileError(s"rename $from to $to") {
    val (system, source) = locate(from)
    val target = new Path(to)
    if (!system.exists(source)) throw new FileNotFoundException(s"$from does not exist")
    if (system.exists(target)) throw new FileAlreadyExistsException(s"$to exists already")
    if (!system.rename(source, target))
      throw new IOException(
        "the file system refused without a reason; does the target's parent exist?"
      )
  }

  /**
   * Delete a file or directory; one that is not empty only if `recursive`. A missing one counts as
   * deleted.
   */
  def delete(remote: String, recursive: Boolean): Unit = orFileError(s"delete $remote") {
    val (system, target) = locate(remote)
    if (!system.delete(target, recursive) && system.exists(target))
      throw new IOException("the file system refused without a reason")
  }

  def exists(remote: String): Boolean = orFileError(s"look at $remote") {
    val (system, path) = locate(remote)
    system.exists(path)
  }

  private def locate(remote: String): (FileSystem, Path) = {
    val path = new Path(remote)
    (path.getFileSystem(conf), path)
  }

  /** Copy all bytes, and close `to`. If that fails, call `discard`. */
  private def copy(from: InputStream, to: OutputStream, discard: => Unit): Unit = {
    val watched = new FilterInputStream(from) {
      override def read(buffer: Array[Byte], begin: Int, count: Int): Int =
        if (isOver()) throw new IOException("the Python worker left")
        else super.read(buffer, begin, count)
    }
    try IOUtils.copyBytes(watched, to, BufferBytes, true)
    catch {
      case NonFatal(e) =>
        try discard
        catch { case NonFatal(another) => e.addSuppressed(another) }
        throw e
    }
  }

  /**
   * Run `body`, and turn its failure into a CommException. File systems are plug-ins that throw
   * anything, such as a RuntimeException for a missing class. A cloud store without its SDK throws
   * an Error, which would end the executor.
   */
  private def orFileError[T](what: String)(body: => T): T =
    try body
    catch {
      case e @ (NonFatal(_) | _: LinkageError) =>
        throw new CommException(CommException.File, s"cannot $what: $e", cause = e)
    }
}

private[bridge] object HadoopFiles {
  private val BufferBytes = 1 << 20
}
